//! The `wedjat-testbed` command.
fn main() {}
