//! The learner of nodes without a scheduler, compared with traces of another implementation.

pub mod trace;
