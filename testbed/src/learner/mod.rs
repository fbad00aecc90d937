//! The learner of nodes without a scheduler, held against traces of another one.

pub mod trace;
