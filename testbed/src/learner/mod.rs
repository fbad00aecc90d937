//! Comparison of the actor-critic learner (`wedjat_learner`) with traces of another implementation. In racks without
//! a leaf, nodes use the learner to choose the nodes to which they pass tasks and from which they steal tasks.

pub mod trace;
