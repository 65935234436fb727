//! Configuration of memif interfaces, and its errors.

use std::io;
use std::path::PathBuf;

use longhaul_port::FRAME_BYTES_MIN;
use thiserror::Error;

use crate::message::{NAME_BYTES, SECRET_BYTES};

/// Maximum ring size, as the base-2 logarithm of its descriptors; also the maximum of published
/// implementations.
pub const RING_SIZE_LOG2_MAX: u8 = 14;

/// Configuration of one memif interface, for either role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemifConfig {
    /// Name that is sent to the peer and used in errors: 1 to 31 bytes.
    pub name: String,
    /// Descriptors per ring as a base-2 logarithm, 1 to 14. Only the slave uses it: it lays out the
    /// rings, with the smaller of this and the master's maximum.
    pub ring_size_log2: u8,
    /// Maximum frame in bytes, 64 to 65535. The slave allocates `2 * 2^ring_size_log2` buffers of
    /// this size. The default of 4352 fits a 4096-byte RDMA payload with two VLAN tags, IPv6 and
    /// all headers and trailers in one buffer, with 150 bytes to spare for an encapsulation.
    pub frame_bytes_max: usize,
    /// A shared secret of 1 to 24 bytes without NUL. A master with a secret refuses a slave without
    /// it. It crosses the UNIX socket in cleartext, so it prevents mistakes but not attacks.
    pub secret: Option<String>,
    /// Maximum memory that a master maps for one slave, in bytes. Mapped pages are touched at once
    /// and count as this process' own, so this bounds the memory that a slave can make it use.
    pub region_bytes_max: u64,
}

impl MemifConfig {
    /// Defaults: 2048 descriptors per ring, 4352-byte frames, no secret, 1 GiB of regions.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ring_size_log2: 11,
            frame_bytes_max: 4352,
            secret: None,
            region_bytes_max: 1 << 30,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), MemifError> {
        let refuse = |field, detail: String| Err(MemifError::Config { field, detail });
        let name_bytes = self.name.len();
        if name_bytes == 0 || name_bytes >= NAME_BYTES || self.name.contains('\0') {
            return refuse("name", format!("{:?} is not 1 to {} bytes", self.name, NAME_BYTES - 1));
        }
        if !(1..=RING_SIZE_LOG2_MAX).contains(&self.ring_size_log2) {
            let detail = format!("{} is not in 1 to {RING_SIZE_LOG2_MAX}", self.ring_size_log2);
            return refuse("ring_size_log2", detail);
        }
        if !(64..=65535).contains(&self.frame_bytes_max) {
            return refuse(
                "frame_bytes_max",
                format!("{} is not in 64 to 65535", self.frame_bytes_max),
            );
        }
        if let Some(secret) = &self.secret
            && (secret.is_empty() || secret.len() > SECRET_BYTES || secret.contains('\0'))
        {
            return refuse("secret", format!("it has to be 1 to {SECRET_BYTES} bytes without NUL"));
        }
        Ok(())
    }
}

const _: () = assert!(FRAME_BYTES_MIN <= 64);

/// Why a listener or an interface cannot be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemifError {
    /// A field of the configuration is out of range.
    #[error("memif configuration: {field}: {detail}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// The value, and the valid range.
        detail: String,
    },
    /// Another process listens on this socket.
    #[error("{} is in use: a process listens on it", path.display())]
    AddressInUse {
        /// The socket.
        path: PathBuf,
    },
    /// The path names a file other than a socket, which is left unchanged.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The listener already has an interface with this id.
    #[error("{} already has an interface with id {id}", path.display())]
    DuplicateId {
        /// The socket.
        path: PathBuf,
        /// The interface id.
        id: u32,
    },
    /// An operating system error.
    #[error("{}: {operation}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// The failed operation.
        operation: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}
