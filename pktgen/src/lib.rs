//! wedjat-pktgen.
