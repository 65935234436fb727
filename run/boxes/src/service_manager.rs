//! Messages to the service manager that started this process (sd_notify(3)).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable in which the service manager names its socket.
const SOCKET: &str = "NOTIFY_SOCKET";

/// The variable in which systemd names a service's run.
const INVOCATION: &str = "INVOCATION_ID";

/// True if a service manager waits for messages.
pub fn waits() -> bool {
    std::env::var_os(SOCKET).is_some_and(|path| !path.is_empty())
}

/// Tells the service manager, if there is one, assignments as `READY=1`.
///
/// # Errors
/// If its socket cannot be reached.
pub fn tell(text: &str) -> io::Result<()> {
    let Some(path) = std::env::var_os(SOCKET).filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(drop)
}

/// The name of this run of the service that this process belongs to: systemd gives it to all of the
/// service's processes.
pub fn invocation() -> Option<String> {
    std::env::var(INVOCATION).ok()
}
