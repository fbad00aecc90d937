//! Free addresses of this machine, for processes whose ports must be known before they start. Tests of several packages
//! include this file.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// First port that [`free_address`] returns.
const FIRST: u16 = 10_000;
/// Number of ports that it chooses from. All are below the ephemeral ports of Linux, which begin at 32768.
const COUNT: u16 = 20_000;

/// Returns a loopback address whose port is free for TCP and UDP, and is not ephemeral. Any outgoing connection of this
/// machine may take an ephemeral port. A client that connects to such a port before its server listens may even connect
/// to itself. A process gets an address again only after it has tried all other ports.
///
/// # Errors
/// If all these ports are in use.
pub fn free_address() -> Result<SocketAddr> {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // A prime, so that processes with near ids begin far apart.
    let start = std::process::id().wrapping_mul(7919);
    let is_free = |address: &SocketAddr| {
        TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
    };
    let address = |_| {
        let offset = start.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
        SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + offset as u16))
    };
    (0..COUNT).map(address).find(is_free).ok_or_else(|| {
        Error::new(
            ErrorKind::AddrInUse,
            format!("ports {FIRST} to {} are in use", FIRST + COUNT - 1),
        )
    })
}
