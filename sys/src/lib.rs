//! Bindings to the installed libdpdk.
