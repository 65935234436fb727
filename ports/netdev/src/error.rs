//! Errors of opening a port.

use std::io;

use thiserror::Error;

use crate::interface;

/// Why an interface cannot be used, with the cure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetdevError {
    /// A field of the configuration is out of range.
    #[error("configuration of a network interface port: {field}: {detail}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// The value, and the valid range.
        detail: String,
    },
    /// The name cannot be an interface's.
    #[error("{interface:?} cannot be the name of an interface: {detail}")]
    BadName {
        /// The name.
        interface: String,
        /// The reason.
        detail: &'static str,
    },
    /// The interface does not exist in this network namespace.
    #[error("no interface {interface} here; there are: {}", .existing.join(", "))]
    NoSuchInterface {
        /// The name.
        interface: String,
        /// The existing interfaces.
        existing: Vec<String>,
    },
    /// The process lacks a privilege.
    #[error(
        "{operation} needs {capability}: run this as root, or with that capability: 'sudo setpriv \
         --reuid $USER --init-groups --inh-caps +{0} --ambient-caps +{0} longhaul …', or \
         AmbientCapabilities= in a unit",
        .capability.trim_start_matches("CAP_").to_ascii_lowercase()
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// The failed operation.
        operation: &'static str,
        /// The capability that it needs.
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
    /// An interface of another kind has this name.
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
        "no TAP devices here: /dev/net/tun is missing: load the module with 'modprobe tun', or \
         give the container the device"
    )]
    NoTapDevices,
    /// The interface does not carry Ethernet frames.
    #[error("interface {interface} does not carry Ethernet frames (hardware type {hardware_type})")]
    NotEthernet {
        /// The interface.
        interface: String,
        /// Its `ARPHRD_` number.
        hardware_type: u16,
    },
    /// The device does not support the MTU.
    #[error(
        "{interface} does not take an MTU of {mtu} bytes: 'ip -d link show {interface}' tells the \
         least and the most"
    )]
    MtuOutOfRange {
        /// The interface.
        interface: String,
        /// The requested MTU, in bytes.
        mtu: u32,
    },
    /// Another process handed over what is not this port.
    #[error("{interface}: the running process handed over {what}")]
    NotThisPort {
        /// The interface.
        interface: String,
        /// What it handed over instead.
        what: &'static str,
    },
    /// Any other error of the operating system.
    #[error("{interface}: {operation}: {source}")]
    Io {
        /// The interface.
        interface: String,
        /// The failed operation.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl NetdevError {
    /// Classifies `source` for `interface` by its usual cause; `capability` is the one that
    /// `operation` needs.
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
