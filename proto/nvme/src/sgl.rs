//! SGL descriptors.

use crate::Status;
use crate::fields::{array, put, u32_at, u64_at};
use longhaul_units::RKey;

/// Keyed data block, subtype address.
const KEYED: u8 = 0x40;
/// Keyed data block; the controller invalidates the key with its response.
const KEYED_INVALIDATE: u8 = 0x4f;
/// Data block, subtype offset: into the data of the capsule.
const OFFSET: u8 = 0x01;
/// Data block, subtype address.
const ADDRESS: u8 = 0x00;

/// Memory of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Virtual address of the first byte.
    pub address: u64,
    /// Key of the memory region.
    pub rkey: RKey,
    /// Length in bytes, below 2^24.
    pub len: u32,
}

/// Location of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataPointer {
    /// In the host's memory.
    Keyed {
        /// The memory.
        remote: Remote,
        /// The response shall invalidate its key.
        invalidate: bool,
    },
    /// Behind the command, in its capsule.
    InCapsule {
        /// Offset in the capsule's data.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
}

impl DataPointer {
    /// Of a command without data.
    pub const NONE: DataPointer = DataPointer::Keyed {
        remote: Remote { address: 0, rkey: RKey(0), len: 0 },
        invalidate: false,
    };

    /// Parses a descriptor.
    ///
    /// # Errors
    /// [`Status::INVALID_SGL_TYPE`] for those that this transport does not have.
    pub fn read(bytes: &[u8; 16]) -> Result<Self, Status> {
        match bytes[15] {
            kind @ (KEYED | KEYED_INVALIDATE) => {
                let [l0, l1, l2, k0, k1, k2, k3] = array(bytes, 8);
                let remote = Remote {
                    address: u64_at(bytes, 0),
                    rkey: RKey(u32::from_le_bytes([k0, k1, k2, k3])),
                    len: u32::from_le_bytes([l0, l1, l2, 0]),
                };
                Ok(DataPointer::Keyed { remote, invalidate: kind == KEYED_INVALIDATE })
            }
            OFFSET => {
                Ok(DataPointer::InCapsule { offset: u64_at(bytes, 0), len: u32_at(bytes, 8) })
            }
            // All zeros: a command without data.
            ADDRESS if u32_at(bytes, 8) == 0 => Ok(DataPointer::NONE),
            _ => Err(Status::INVALID_SGL_TYPE.permanent()),
        }
    }

    /// Writes a descriptor.
    #[must_use]
    pub fn write(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        match self {
            DataPointer::Keyed { remote, invalidate } => {
                put(&mut bytes, 0, &remote.address.to_le_bytes());
                put(&mut bytes, 8, &remote.len.to_le_bytes()[..3]);
                put(&mut bytes, 11, &remote.rkey.0.to_le_bytes());
                bytes[15] = if invalidate { KEYED_INVALIDATE } else { KEYED };
            }
            DataPointer::InCapsule { offset, len } => {
                put(&mut bytes, 0, &offset.to_le_bytes());
                put(&mut bytes, 8, &len.to_le_bytes());
                bytes[15] = OFFSET;
            }
        }
        bytes
    }

    /// Length of the data in bytes.
    #[must_use]
    pub fn len(self) -> u32 {
        match self {
            DataPointer::Keyed { remote, .. } => remote.len,
            DataPointer::InCapsule { len, .. } => len,
        }
    }

    /// True if there is no data.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_read_as_written() {
        let remote =
            Remote { address: 0x1234_5678_9abc, rkey: RKey(0xaabb_ccdd), len: 0x0001_0203 };
        let keyed = DataPointer::Keyed { remote, invalidate: true };
        let bytes = keyed.write();
        assert_eq!(bytes[8..], [0x03, 0x02, 0x01, 0xdd, 0xcc, 0xbb, 0xaa, 0x4f]);
        let inside = DataPointer::InCapsule { offset: 512, len: 4096 };
        for pointer in [keyed, inside, DataPointer::NONE] {
            assert_eq!(DataPointer::read(&pointer.write()), Ok(pointer));
        }
    }

    #[test]
    fn other_types_are_refused() {
        assert_eq!(DataPointer::read(&[0; 16]), Ok(DataPointer::NONE));
        for kind in [0x00, 0x02, 0x20, 0x30, 0x41, 0x5a, 0xff] {
            let mut bytes = [1; 16];
            bytes[15] = kind;
            assert_eq!(DataPointer::read(&bytes), Err(Status::INVALID_SGL_TYPE.permanent()));
        }
    }
}
