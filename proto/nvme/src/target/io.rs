//! Commands of I/O queues.

use super::controller::ControllerId;
use super::queue::{Fetched, Origin, Place, Slot};
use super::step::{ALL_NAMESPACES, Io, Output, Source, SubsystemId};
use super::{Arrived, Namespace, Step, Target, Token};
use crate::fields::{u32_at, u64_at};
use crate::{Command, Status, io};

/// Bytes of a range of Dataset Management.
const RANGE_LEN: u32 = 16;
/// Dataset Management, dword 11: deallocate.
const DEALLOCATE: u32 = 1 << 2;
/// Force Unit Access, dword 12 of [`ACCESSES`].
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
const ACCESSES: [u8; 4] = [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES];

/// Blocks of a command: the first, and their number.
fn blocks(command: &Command) -> (u64, u64) {
    (command.quad(0), u64::from(command.dwords[2] as u16) + 1)
}

impl Target {
    pub(super) fn io(
        &mut self,
        controller: ControllerId,
        subsystem: SubsystemId,
        arrived: &Arrived<'_>,
    ) -> Step {
        let Arrived { token, origin, command, .. } = arrived;
        let is_ready = self.controllers.get(&controller).is_some_and(|one| one.is_ready());
        if !is_ready {
            return self.fail(*token, *origin, Status::SEQUENCE_ERROR.permanent());
        }
        let durable =
            ACCESSES.contains(&command.opcode) && command.dwords[2] & FORCE_UNIT_ACCESS != 0;
        let at = Place { subsystem, namespace: command.namespace, durable };
        if command.opcode == io::FLUSH && command.namespace == ALL_NAMESPACES {
            return self.execute(*token, *origin, at, Io::Flush, None);
        }
        let namespaces = self.config.subsystems.get(subsystem).map(|one| &one.namespaces);
        let Some(namespace) = namespaces.and_then(|all| all.get(&command.namespace)).copied()
        else {
            return self.fail(*token, *origin, Status::INVALID_NAMESPACE.permanent());
        };
        let step = match command.opcode {
            io::READ => self.read(&namespace, at, arrived),
            io::WRITE | io::COMPARE => self.write_or_compare(&namespace, at, arrived),
            io::WRITE_ZEROES => self.write_zeroes(&namespace, at, arrived),
            io::DATASET_MANAGEMENT => self.manage_dataset(at, arrived),
            io::FLUSH => Ok(self.execute(*token, *origin, at, Io::Flush, None)),
            _ => Err(Status::INVALID_OPCODE.permanent()),
        };
        step.unwrap_or_else(|status| self.fail(*token, *origin, status))
    }

    /// Offset and length of a transfer.
    fn transfer(&self, namespace: &Namespace, command: &Command) -> Result<(u64, u32), Status> {
        let (first, count) = blocks(command);
        let range = namespace.range(first, count);
        let (offset, len) = range.ok_or(Status::LBA_OUT_OF_RANGE.permanent())?;
        match u32::try_from(len) {
            Ok(len) if len <= self.config.transfer_max => Ok((offset, len)),
            _ => Err(Status::INVALID_FIELD.permanent()),
        }
    }

    fn read(
        &mut self,
        namespace: &Namespace,
        at: Place,
        arrived: &Arrived<'_>,
    ) -> Result<Step, Status> {
        let (offset, len) = self.transfer(namespace, &arrived.command)?;
        let output = Some(Output::Buffer(arrived.keyed(len)?));
        let read = Io::Read { offset, len };
        Ok(self.execute(arrived.token, arrived.origin, at, read, output))
    }

    fn write_or_compare(
        &mut self,
        namespace: &Namespace,
        at: Place,
        arrived: &Arrived<'_>,
    ) -> Result<Step, Status> {
        let (offset, len) = self.transfer(namespace, &arrived.command)?;
        if arrived.pointer.len() != len {
            return Err(Status::INVALID_DATA_LENGTH.permanent());
        }
        let access = |from: Source| match arrived.command.opcode {
            io::COMPARE => Io::Compare { offset, len, with: from },
            _ => Io::Write { offset, len, from },
        };
        Ok(match arrived.in_capsule()? {
            Some(start) => {
                let io = access(Source::Capsule(start));
                self.execute(arrived.token, arrived.origin, at, io, None)
            }
            None => self.fetch(arrived, len, Fetched::Execute { at, io: access(Source::Buffer) }),
        })
    }

    fn write_zeroes(
        &mut self,
        namespace: &Namespace,
        at: Place,
        arrived: &Arrived<'_>,
    ) -> Result<Step, Status> {
        let (first, count) = blocks(&arrived.command);
        let range = namespace.range(first, count);
        let (offset, len) = range.ok_or(Status::LBA_OUT_OF_RANGE.permanent())?;
        let io = Io::WriteZeroes(offset..offset + len);
        Ok(self.execute(arrived.token, arrived.origin, at, io, None))
    }

    fn manage_dataset(&mut self, at: Place, arrived: &Arrived<'_>) -> Result<Step, Status> {
        let [ranges, attributes, ..] = arrived.command.dwords;
        let count = (ranges & 0xff) + 1;
        // Linux always transfers 256 ranges, whatever their number.
        if arrived.pointer.len() < count * RANGE_LEN {
            return Err(Status::INVALID_DATA_LENGTH.permanent());
        }
        let start = arrived.in_capsule()?;
        if attributes & DEALLOCATE == 0 {
            // The other attributes are hints.
            return Ok(self.succeed(arrived.token, arrived.origin, 0));
        }
        Ok(match start {
            Some(start) => {
                let data = (arrived.capsule.data)(start, count * RANGE_LEN);
                self.deallocate(arrived.token, arrived.origin, at, &data)
            }
            None => self.fetch(arrived, count * RANGE_LEN, Fetched::Ranges { at, count }),
        })
    }

    /// Deallocates the ranges in the data of Dataset Management.
    pub(super) fn deallocate(
        &mut self,
        token: Token,
        origin: Origin,
        at: Place,
        data: &[u8],
    ) -> Step {
        let subsystem = self.config.subsystems.get(at.subsystem);
        let namespace = subsystem.and_then(|one| one.namespaces.get(&at.namespace));
        let Some(namespace) = namespace else {
            return self.fail(token, origin, Status::INVALID_NAMESPACE.permanent());
        };
        let range = |range: &[u8]| {
            let (offset, len) = namespace.range(u64_at(range, 8), u32_at(range, 4).into())?;
            Some(offset..offset + len)
        };
        let ranges: Option<Vec<_>> = data.chunks(RANGE_LEN as usize).map(range).collect();
        match ranges {
            Some(ranges) => self.execute(token, origin, at, Io::Deallocate(ranges), None),
            None => self.fail(token, origin, Status::LBA_OUT_OF_RANGE.permanent()),
        }
    }

    pub(super) fn execute(
        &mut self,
        token: Token,
        origin: Origin,
        at: Place,
        io: Io,
        output: Option<Output>,
    ) -> Step {
        if let Some(queue) = self.queues.get_mut(token.queue) {
            queue.occupy(token.slot, Slot::Executing { origin, output });
        }
        let Place { subsystem, namespace, durable } = at;
        Step::Execute { token, subsystem, namespace, io, durable }
    }
}
