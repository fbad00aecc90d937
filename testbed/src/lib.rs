//! wedjat-testbed.
