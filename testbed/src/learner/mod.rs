//! The learner of nodes without a scheduler, which pass tasks to each other, compared with traces of another
//! implementation.

pub mod trace;
