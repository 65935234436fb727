//! Claims of interfaces: with two boxes at one interface, every frame would arrive twice.
//!
//! A claim is an abstract socket with the interface's name. The kernel has such sockets per network
//! namespace, as interfaces, and removes them with their process.

use crate::port::{PortError, PortName};
use crate::socket;
use rustix::process::Pid;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Time limit of the answer of the box that has the claim.
const PATIENCE: Duration = Duration::from_secs(2);

/// An interface that this box has for itself.
pub struct Claim(UnixListener);

impl Claim {
    /// Claims the interface of `port`, if boxes cannot share it.
    ///
    /// # Errors
    /// [`PortError::InUse`], if another box has it.
    pub fn of(port: &PortName) -> Result<Option<Self>, PortError> {
        // A TAP device has its own lock, and a circuit's frames are its alone.
        let (PortName::Interface(_) | PortName::Xdp(_)) = port else { return Ok(None) };
        let Some(interface) = port.interface() else { return Ok(None) };
        match Claim::named(interface) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match box_at(interface) {
                Some(holder) => Err(PortError::InUse { port: port.clone(), holder }),
                None => Ok(None),
            },
            claim => Ok(claim.ok()),
        }
    }

    /// A claim that another process passed on.
    pub fn inherited(listener: UnixListener) -> Self {
        Claim(listener)
    }

    /// The claim, for another process.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn duplicate(&self) -> io::Result<UnixListener> {
        self.0.try_clone()
    }

    fn named(interface: &str) -> io::Result<Self> {
        UnixListener::bind_addr(&address(interface)?).map(Claim)
    }

    /// Tells other boxes that `box_name` has the interfaces, as long as the process runs.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn serve(claims: Vec<Self>, box_name: &str) -> io::Result<()> {
        if claims.is_empty() {
            return Ok(());
        }
        let listeners = claims.into_iter().map(|claim| claim.0).collect();
        let name = box_name.as_bytes().to_vec();
        socket::serve_all(listeners, move |_, stream| socket::reply(stream, Some(name.clone())))
    }
}

fn address(interface: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("longhaul/port/{interface}"))
}

/// The process that has claimed an address, and a connection to it; none if the claim is gone, or
/// is that of another user than root, who must not keep this process from its work.
pub(crate) fn holder(address: &SocketAddr) -> Option<(UnixStream, Pid)> {
    let stream = UnixStream::connect_addr(address).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
    let is_trusted = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
    is_trusted.then_some((stream, peer.pid))
}

/// The box that has the interface.
fn box_at(interface: &str) -> Option<String> {
    let (stream, pid) = holder(&address(interface).ok()?)?;
    let name = socket::ask(stream, b"", PATIENCE).ok().filter(|name| !name.is_empty());
    let name = name.map_or_else(String::new, |name| format!(" '{name}'"));
    Some(format!("box{name} (PID {})", pid.as_raw_nonzero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_box_at_an_interface_hears_which_has_it() {
        let names = ["lan", "wan"].map(|side| format!("{side}{}", std::process::id()));
        let claim = |port: &str| Claim::of(&port.parse().unwrap());
        let claims = names.iter().map(|name| claim(name).unwrap().unwrap()).collect();
        Claim::serve(claims, "west").unwrap();
        for name in names.iter().chain(names.iter().rev()) {
            let other = format!("xdp:{name}");
            let refusal = claim(&other).err().unwrap().to_string();
            let told = format!("cannot open port {other}: box 'west' (PID ");
            assert!(refusal.starts_with(&told) && refusal.ends_with("has it"), "{refusal}");
            assert!(claim(&format!("tap:{name}")).unwrap().is_none());
        }
    }

    #[test]
    fn a_box_that_ended_has_no_claim() {
        let port: PortName = format!("u{}", std::process::id()).parse().unwrap();
        drop(Claim::of(&port).unwrap().unwrap());
        assert!(Claim::of(&port).unwrap().is_some());
    }
}
