//! Command and response capsules.

use crate::fields::{array, put, u16_at, u32_at, u64_at};
use crate::{DataPointer, Status};

/// Length of a submission queue entry, and of a command capsule without in-capsule data.
pub const SQE_LEN: usize = 64;
/// Length of a completion queue entry, and of a response capsule.
pub const CQE_LEN: usize = 16;

/// SGLs, with a contiguous metadata buffer if there is metadata (PSDT 01).
const USES_SGLS: u8 = 0x40;
/// PSDT and FUSE.
const KNOWN_FLAGS: u8 = 0xc3;

/// A submission queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// Opcode.
    pub opcode: u8,
    /// FUSE and PSDT.
    pub flags: u8,
    /// Command identifier.
    pub id: u16,
    /// Namespace; of a Fabrics command, the lowest byte is its type.
    pub namespace: u32,
    /// SGL descriptor.
    pub descriptor: [u8; 16],
    /// Dwords 10 to 15.
    pub dwords: [u32; 6],
}

impl Command {
    /// A command without data and operands.
    #[must_use]
    pub fn new(opcode: u8, namespace: u32) -> Self {
        let descriptor = DataPointer::NONE.write();
        Command { opcode, flags: USES_SGLS, id: 0, namespace, descriptor, dwords: [0; 6] }
    }

    /// Parses the first 64 bytes of a capsule; `None` if there are fewer.
    #[must_use]
    pub fn read(capsule: &[u8]) -> Option<Self> {
        let bytes: &[u8; SQE_LEN] = capsule.first_chunk()?;
        Some(Command {
            opcode: bytes[0],
            flags: bytes[1],
            id: u16_at(bytes, 2),
            namespace: u32_at(bytes, 4),
            descriptor: array(bytes, 24),
            dwords: std::array::from_fn(|i| u32_at(bytes, 40 + 4 * i)),
        })
    }

    /// Writes the entry.
    #[must_use]
    pub fn write(&self) -> [u8; SQE_LEN] {
        let mut bytes = [0; SQE_LEN];
        bytes[..2].copy_from_slice(&[self.opcode, self.flags]);
        put(&mut bytes, 2, &self.id.to_le_bytes());
        put(&mut bytes, 4, &self.namespace.to_le_bytes());
        put(&mut bytes, 24, &self.descriptor);
        for (i, dword) in self.dwords.iter().enumerate() {
            put(&mut bytes, 40 + 4 * i, &dword.to_le_bytes());
        }
        bytes
    }

    /// True if it uses SGLs and is not part of a fused pair.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.flags & KNOWN_FLAGS == USES_SGLS
    }

    /// Location of its data.
    ///
    /// # Errors
    /// As [`DataPointer::read`].
    pub fn data(&self) -> Result<DataPointer, Status> {
        DataPointer::read(&self.descriptor)
    }

    /// Type of a Fabrics command.
    #[must_use]
    pub fn fabrics_type(&self) -> u8 {
        self.namespace as u8
    }

    /// Dwords 10 and 11, or 12 and 13, and so on, as one number.
    #[must_use]
    pub fn quad(&self, first: usize) -> u64 {
        let dword = |i: usize| u64::from(self.dwords.get(i).copied().unwrap_or(0));
        dword(first) | dword(first + 1) << 32
    }

    /// Sets two dwords to one number.
    pub fn set_quad(&mut self, first: usize, value: u64) {
        for (dword, half) in self.dwords.iter_mut().skip(first).zip([value, value >> 32]) {
            *dword = half as u32;
        }
    }
}

/// A completion queue entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Result, specific to the command.
    pub result: u64,
    /// Head of the submission queue; 0xffff without flow control.
    pub sq_head: u16,
    /// Queue.
    pub queue: u16,
    /// Command identifier.
    pub id: u16,
    /// Outcome.
    pub status: Status,
}

impl Completion {
    /// Parses a response capsule; `None` unless it has 16 bytes.
    #[must_use]
    pub fn read(capsule: &[u8]) -> Option<Self> {
        let bytes: &[u8; CQE_LEN] = capsule.try_into().ok()?;
        Some(Completion {
            result: u64_at(bytes, 0),
            sq_head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            id: u16_at(bytes, 12),
            status: Status::from_field(u16_at(bytes, 14)),
        })
    }

    /// Writes the entry.
    #[must_use]
    pub fn write(&self) -> [u8; CQE_LEN] {
        let mut bytes = [0; CQE_LEN];
        put(&mut bytes, 0, &self.result.to_le_bytes());
        put(&mut bytes, 8, &self.sq_head.to_le_bytes());
        put(&mut bytes, 10, &self.queue.to_le_bytes());
        put(&mut bytes, 12, &self.id.to_le_bytes());
        put(&mut bytes, 14, &self.status.field().to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let mut command = Command::new(0x02, 7);
        command.id = 0x1234;
        command.set_quad(0, 0x1122_3344_5566_7788);
        let bytes = command.write();
        assert_eq!(bytes[..8], [0x02, 0x40, 0x34, 0x12, 7, 0, 0, 0]);
        assert_eq!(bytes[40..48], [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(command.quad(0), 0x1122_3344_5566_7788);
        let status = Status::LBA_OUT_OF_RANGE.permanent();
        let completion = Completion { result: 1, sq_head: 2, queue: 3, id: 4, status };
        let bytes = completion.write();
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 4, 0, 0x00, 0x81]);
        assert_eq!(Completion::read(&bytes), Some(completion));
        assert_eq!(Completion::read(&bytes[..15]), None);
        assert_eq!(Command::read(&[0; 63]), None);
    }

    proptest! {
        #[test]
        fn a_command_is_read_as_written(bytes in proptest::array::uniform32(any::<u8>())) {
            let mut capsule = [0; 64];
            capsule[..8].copy_from_slice(&bytes[..8]);
            capsule[24..48].copy_from_slice(&bytes[8..]);
            let command = Command::read(&capsule).unwrap();
            prop_assert_eq!(command.write(), capsule);
        }
    }
}
