//! An I/O queue of a host.

use super::slots::Slots;
use super::{HostError, Identity, Submission};
use crate::{
    CONNECT_DATA_LEN, Command, Completion, ConnectData, DataPointer, Remote, Status, admin, io,
};

/// Kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationKind {
    /// Read blocks to the slot's buffer.
    Read,
    /// Write blocks from the slot's buffer.
    Write,
    /// Compare blocks with the slot's buffer.
    Compare,
    /// Write zeros.
    WriteZeroes,
    /// Deallocate the blocks; the slot's buffer carries the range.
    Deallocate,
    /// Make earlier writes permanent.
    Flush,
}

/// An operation on a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Kind.
    pub kind: OperationKind,
    /// Namespace.
    pub namespace: u32,
    /// First block.
    pub block: u64,
    /// Number of blocks, 1 to 65536.
    pub blocks: u32,
    /// Bytes of them.
    pub bytes: u32,
}

/// A completed operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer<T> {
    /// Its slot, whose buffer holds the data of a read until the next submission.
    pub slot: u16,
    /// Outcome.
    pub status: Status,
    /// As submitted.
    pub context: T,
}

enum Pending<T> {
    Connect,
    Operation(T),
}

/// Where a queue stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Unconnected,
    Connecting,
    Ready,
}

/// An I/O queue, with a context of type `T` for each outstanding operation.
pub struct IoQueue<T> {
    number: u16,
    depth: u16,
    /// Largest in-capsule data in bytes.
    in_capsule: u32,
    link: Link,
    slots: Slots<Pending<T>>,
}

impl<T> IoQueue<T> {
    /// Queue `number`, from 1, of a controller that takes `in_capsule` bytes of in-capsule data.
    #[must_use]
    pub fn new(number: u16, depth: u16, in_capsule: u32) -> Self {
        let slots = Slots::new(depth);
        let depth = slots.free() as u16;
        IoQueue { number, depth, in_capsule, link: Link::Unconnected, slots }
    }

    /// The Connect command to send first.
    pub fn connect(
        &mut self,
        identity: &Identity,
        controller: u16,
        buffer: impl FnOnce(u16) -> Remote,
    ) -> Option<Submission> {
        if self.link != Link::Unconnected {
            return None;
        }
        let data = identity.data(controller);
        let (slot, id) = self.slots.occupy(Pending::Connect).ok()?;
        self.link = Link::Connecting;
        Some(connect(slot, id, (self.number, self.depth, 0), &data, buffer(slot)))
    }

    /// True once Connect has succeeded.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.link == Link::Ready
    }

    /// The slot that the next operation occupies; `None` if all are occupied, or it is not ready.
    #[must_use]
    pub fn next_slot(&self) -> Option<u16> {
        if self.is_ready() { self.slots.next() } else { None }
    }

    /// Number of outstanding operations.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.outstanding()
    }

    /// Starts an operation in [`IoQueue::next_slot`], whose buffer is `buffer`, of at least
    /// `operation.bytes` bytes.
    ///
    /// # Errors
    /// The context, if no slot is free.
    pub fn submit(
        &mut self,
        operation: &Operation,
        context: T,
        buffer: impl FnOnce(u16) -> Remote,
    ) -> Result<Submission, T> {
        if !self.is_ready() {
            return Err(context);
        }
        let occupied = self.slots.occupy(Pending::Operation(context));
        let (slot, id) = match occupied {
            Ok(occupied) => occupied,
            Err(Pending::Operation(context)) => return Err(context),
            Err(Pending::Connect) => unreachable!("an operation was passed"),
        };
        let (opcode, len) = match operation.kind {
            OperationKind::Read => (io::READ, operation.bytes),
            OperationKind::Write => (io::WRITE, operation.bytes),
            OperationKind::Compare => (io::COMPARE, operation.bytes),
            OperationKind::WriteZeroes => (io::WRITE_ZEROES, 0),
            OperationKind::Deallocate => (io::DATASET_MANAGEMENT, 16),
            OperationKind::Flush => (io::FLUSH, 0),
        };
        let mut command = Command::new(opcode, operation.namespace);
        command.id = id;
        let mut data = Vec::new();
        match operation.kind {
            OperationKind::Deallocate => {
                // One range, to be deallocated.
                command.dwords[1] = 1 << 2;
                data.extend(0_u32.to_le_bytes());
                data.extend(operation.blocks.to_le_bytes());
                data.extend(operation.block.to_le_bytes());
            }
            OperationKind::Flush => {}
            _ => {
                command.set_quad(0, operation.block);
                command.dwords[2] = operation.blocks.saturating_sub(1) & 0xffff;
            }
        }
        let is_read = operation.kind == OperationKind::Read;
        let in_capsule = if !is_read && len <= self.in_capsule { len } else { 0 };
        if len > 0 {
            command.descriptor = match in_capsule {
                0 => keyed(buffer(slot), len),
                len => DataPointer::InCapsule { offset: 0, len },
            }
            .write();
        }
        Ok(Submission { slot, command: command.write(), data, in_capsule })
    }

    /// A response capsule; `None` for that to Connect.
    ///
    /// # Errors
    /// [`HostError`]: the connection must be ended.
    pub fn completed(&mut self, capsule: &[u8]) -> Result<Option<Answer<T>>, HostError> {
        let completion = Completion::read(capsule).ok_or(HostError::Length(capsule.len()))?;
        let Completion { id, status, .. } = completion;
        match self.slots.release(id).ok_or(HostError::UnknownCommand(id))? {
            (_, Pending::Connect) if status.is_success() => {
                self.link = Link::Ready;
                Ok(None)
            }
            (_, Pending::Connect) => Err(HostError::Refused { command: "Connect", status }),
            (slot, Pending::Operation(context)) => Ok(Some(Answer { slot, status, context })),
        }
    }
}

/// The first `len` bytes of a buffer.
pub(super) fn keyed(buffer: Remote, len: u32) -> DataPointer {
    DataPointer::Keyed { remote: Remote { len, ..buffer }, invalidate: false }
}

/// A Connect command for queue `.0` of `.1` outstanding commands, with a keep-alive timeout of `.2`
/// milliseconds.
pub(super) fn connect(
    slot: u16,
    id: u16,
    (queue, depth, keep_alive_ms): (u16, u16, u32),
    data: &ConnectData,
    buffer: Remote,
) -> Submission {
    let mut command = Command::new(admin::FABRICS, crate::opcode::fabrics::CONNECT.into());
    command.id = id;
    // The size is zero-based, and one entry stays empty.
    command.dwords = [u32::from(queue) << 16, depth.into(), keep_alive_ms, 0, 0, 0];
    command.descriptor = keyed(buffer, CONNECT_DATA_LEN as u32).write();
    Submission { slot, command: command.write(), data: data.write(), in_capsule: 0 }
}
