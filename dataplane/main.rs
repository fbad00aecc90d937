//! The `wedjat` command.
fn main() {}
