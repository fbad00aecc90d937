//! The `wedjat-pktgen` command.
fn main() {}
