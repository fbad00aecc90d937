//! Comparison of the learner with traces of another implementation. The learner belongs to nodes that have no
//! scheduler and pass tasks to each other.

pub mod trace;
