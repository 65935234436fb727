//! Why a port could not be opened.

use std::io;

use thiserror::Error;

use crate::interface;

/// Why an interface could not be used, and what to do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetdevError {
    /// A field of the configuration is out of range.
    #[error("configuration of a network interface port: {field}: {detail}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// The offending value and the range.
        detail: String,
    },
    /// No interface can have this name.
    #[error("{interface:?} cannot be the name of an interface: {detail}")]
    BadName {
        /// The name.
        interface: String,
        /// What is wrong with it.
        detail: &'static str,
    },
    /// The interface does not exist in this network namespace.
    #[error("no interface {interface} here; there are: {}", .existing.join(", "))]
    NoSuchInterface {
        /// The name.
        interface: String,
        /// The interfaces that there are.
        existing: Vec<String>,
    },
    /// The process lacks a privilege.
    #[error(
        "{interface}: not permitted: {operation} needs {capability}: run as root, or give the \
         program the right with `setcap {}=ep PROGRAM`",
        .capability.to_ascii_lowercase()
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// What was being done.
        operation: &'static str,
        /// The capability that it takes.
        capability: &'static str,
    },
    /// Another process has the TAP device open.
    #[error(
        "TAP device {interface} is in use by another process, such as a virtual machine: end that, \
         or choose another name; to share its frames use an af_packet port on it"
    )]
    TapBusy {
        /// The device.
        interface: String,
    },
    /// There is an interface of that name, of another kind.
    #[error(
        "interface {interface} exists and is not a TAP device: choose another name, or use an \
         af_packet port on it"
    )]
    NotATap {
        /// The interface.
        interface: String,
    },
    /// The kernel has no TAP devices.
    #[error(
        "no TAP devices here: /dev/net/tun is missing: load the module with `modprobe tun`, or \
         give the container the device"
    )]
    NoTapDevices,
    /// The interface carries something else than Ethernet frames.
    #[error("interface {interface} does not carry Ethernet frames (hardware type {hardware_type})")]
    NotEthernet {
        /// The interface.
        interface: String,
        /// Its `ARPHRD_` number.
        hardware_type: u16,
    },
    /// The device does not take the MTU.
    #[error(
        "{interface} does not take an MTU of {mtu} bytes: `ip -d link show {interface}` tells the \
         least and the most"
    )]
    MtuOutOfRange {
        /// The interface.
        interface: String,
        /// The MTU that was asked for, in bytes.
        mtu: u32,
    },
    /// The operating system refused something else.
    #[error("{interface}: {operation}: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// What was being done.
        operation: &'static str,
        /// The operating system's answer.
        source: io::Error,
    },
}

impl NetdevError {
    /// Names what `source` means for `interface` where it is the usual cause; `capability` is what
    /// `operation` takes.
    pub fn of(
        interface: &str,
        operation: &'static str,
        capability: &'static str,
        source: io::Error,
    ) -> Self {
        let interface = interface.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                NetdevError::NotPermitted { interface, operation, capability }
            }
            Some(libc::ENODEV | libc::ENXIO) => NetdevError::NoSuchInterface {
                interface,
                existing: interface::list().unwrap_or_default(),
            },
            _ => NetdevError::Io { interface, operation, source },
        }
    }
}
