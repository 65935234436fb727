//! Configuration of a UDP port, and its errors.

use std::io;
use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

use crate::headers::{HEADERS_MAX, PACKET_BYTES_MIN};

/// UDP port of RoCEv2.
pub(crate) const ROCEV2_PORT: u16 = 4791;

/// Configuration of a UDP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpConfig {
    /// Name used in messages.
    pub name: String,
    /// The device's address, which must be one of this machine's, and the UDP port.
    ///
    /// Only one process can use an address and port at a time. All peers must use the same UDP
    /// port, because a port sends frames to its own number. With a number other than 4791 the ICRC
    /// still covers 4791 on both sides, so all peers must be ports of this kind.
    pub bind: SocketAddr,
    /// Maximum frame in bytes, 128 to 65535, Ethernet header included. The default of 4352 fits a
    /// 4096-byte RDMA payload with IPv6 and all headers.
    pub frame_bytes_max: usize,
    /// Number of frames that can be built between two flushes, 1 to 4096. Each takes
    /// `frame_bytes_max` bytes.
    pub transmit_slots: usize,
    /// Requested size of the socket's send buffer, in bytes. The default of 1 MiB holds fewer
    /// packets than the usual device queue of 1000; beyond that queue the kernel drops packets
    /// without an error.
    pub send_buffer_bytes: usize,
    /// Requested size of the socket's receive buffer, in bytes. The default of 8 MiB holds about a
    /// thousand 4 KiB packets. The system's limit (`net.core.rmem_max`) may reduce it, and longer
    /// bursts lose packets: [`crate::window_packets`] computes the window that fits.
    pub receive_buffer_bytes: usize,
    /// Exchanges runs of equally long packets with the kernel as one (`UDP_SEGMENT`, `UDP_GRO`), if
    /// it can. Off: single packets, still in batches.
    pub offload: bool,
}

impl UdpConfig {
    /// Defaults for a device with this address, on UDP port 4791.
    #[must_use]
    pub fn new(name: &str, address: IpAddr) -> Self {
        Self {
            name: name.to_owned(),
            bind: SocketAddr::new(address, ROCEV2_PORT),
            frame_bytes_max: 4352,
            transmit_slots: 256,
            send_buffer_bytes: 1 << 20,
            receive_buffer_bytes: 8 << 20,
            offload: true,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), UdpError> {
        let refuse = |field, detail: String| Err(UdpError::Config { field, detail });
        let ip = self.bind.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            return refuse(
                "bind",
                format!("{ip} is not the address of one machine, which the ICRC covers"),
            );
        }
        if self.bind.port() == 0 {
            return refuse(
                "bind",
                "port 0 would be another one each time, which no peer knows".to_owned(),
            );
        }
        let shortest = HEADERS_MAX + PACKET_BYTES_MIN;
        if !(shortest.max(128)..=65535).contains(&self.frame_bytes_max) {
            return refuse(
                "frame_bytes_max",
                format!("{} is not in 128 to 65535", self.frame_bytes_max),
            );
        }
        if !(1..=4096).contains(&self.transmit_slots) {
            return refuse(
                "transmit_slots",
                format!("{} is not in 1 to 4096", self.transmit_slots),
            );
        }
        for (field, bytes) in [
            ("send_buffer_bytes", self.send_buffer_bytes),
            ("receive_buffer_bytes", self.receive_buffer_bytes),
        ] {
            if !(1..=1 << 30).contains(&bytes) {
                return refuse(field, format!("{bytes} is not in 1 to 2^30"));
            }
        }
        Ok(())
    }
}

/// Why a UDP port could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UdpError {
    /// A field of the configuration is out of range.
    #[error("UDP port configuration: {field}: {detail}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// The value, and the valid range.
        detail: String,
    },
    /// Another socket has this address and port, or the port on all addresses.
    #[error(
        "UDP {bind} is in use: by another process with this device address (give each its own, \
         such as 127.0.0.2), or on all addresses by the kernel's rxe (`modprobe -r rdma_rxe`, or \
         use another port on every peer)"
    )]
    AddressInUse {
        /// The address and port.
        bind: SocketAddr,
    },
    /// This machine does not have the address.
    #[error("{} is not an address of this machine: 'ip address' lists those that are", bind.ip())]
    AddressNotHere {
        /// The address and port.
        bind: SocketAddr,
    },
    /// The system refuses the port to this process.
    #[error(
        "not permitted to open UDP {bind}: ports below net.ipv4.ip_unprivileged_port_start need a \
         privilege, and a sandbox may forbid sockets"
    )]
    NotPermitted {
        /// The address and port.
        bind: SocketAddr,
    },
    /// Any other error of the operating system.
    #[error("UDP {bind}: {operation}: {source}")]
    Io {
        /// The address and port.
        bind: SocketAddr,
        /// The failed operation.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl UdpError {
    pub(crate) fn binding(bind: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => UdpError::AddressInUse { bind },
            io::ErrorKind::AddrNotAvailable => UdpError::AddressNotHere { bind },
            io::ErrorKind::PermissionDenied => UdpError::NotPermitted { bind },
            _ => UdpError::Io { bind, operation: "binding", source },
        }
    }
}
