//! Accesses of a target to the media of its namespaces.

use super::link::Link;
use super::{News, Server};
use crate::medium::file::{Access, Outcome};
use crate::medium::{Medium, part};
use longhaul_nvme::target::{ALL_NAMESPACES, Io, IoError, Source, Step, Token};
use std::ops::Range;

/// Bytes of memory zeroed before other commands have their turn.
const ZEROED_AT_ONCE: u64 = 256 << 10;

fn in_capsule(source: Source) -> Option<u32> {
    match source {
        Source::Buffer => None,
        Source::Capsule(at) => Some(at),
    }
}

/// A command of a host that accesses a namespace, or all of them.
pub(super) struct Command {
    pub token: Token,
    pub namespace: u32,
    pub io: Io,
    /// Its data are on stable storage when it completes.
    pub durable: bool,
}

/// Memory that is being zeroed.
pub(super) struct Zeroing {
    token: Token,
    namespace: u32,
    /// What is left.
    ranges: Vec<Range<u64>>,
}

impl Server {
    /// Zeroes a piece of memory, so that other commands need not wait for whole namespaces. `false`
    /// if there is nothing to zero.
    pub(super) fn zero(&mut self, tell: &mut impl FnMut(News)) -> bool {
        let Some(Zeroing { token, namespace, ranges }) = self.zeroing.front_mut() else {
            return false;
        };
        let token = *token;
        let outcome = match (ranges.last_mut(), self.media.get_mut(namespace)) {
            (None, _) => Ok(()),
            (Some(range), Some(Medium::Memory(memory))) => {
                let piece = range.start..range.end.min(range.start + ZEROED_AT_ONCE);
                range.start = piece.end;
                if range.is_empty() {
                    ranges.pop();
                }
                match part(memory, piece) {
                    Ok(bytes) => {
                        bytes.fill(0);
                        return true;
                    }
                    Err(error) => Err(error),
                }
            }
            _ => Err(IoError::Gone),
        };
        self.zeroing.pop_front();
        let step = self.target.executed(token, outcome);
        self.carry_out(step, tell);
        true
    }

    /// Starts a command of queue pair `qpn`. Returns the next step if it is done at once.
    pub(super) fn execute(&mut self, qpn: u32, command: Command) -> Option<Step> {
        let Command { token, namespace, io, durable } = command;
        match &io {
            Io::Read { len, .. } => self.totals.read_bytes += u64::from(*len),
            Io::Write { len, from, .. } => {
                self.totals.written_bytes += u64::from(*len);
                self.totals.in_capsule_writes += u64::from(matches!(from, Source::Capsule(_)));
            }
            _ => {}
        }
        if namespace == ALL_NAMESPACES {
            return self.flush_all(token);
        }
        let link = self.links.get(&qpn)?;
        let outcome = match self.media.get_mut(&namespace) {
            Some(Medium::Memory(memory)) => match in_memory(memory, link, token.slot, io) {
                Ok(ranges) if !ranges.is_empty() => {
                    self.zeroing.push_back(Zeroing { token, namespace, ranges });
                    return None;
                }
                outcome => outcome.map(|_| ()),
            },
            Some(Medium::Null) => nowhere(&io),
            Some(Medium::File(file)) => {
                let access = of_file(link, token.slot, io);
                self.accesses.as_mut()?.submit(file, token, access, durable);
                return None;
            }
            None => Err(IoError::Gone),
        };
        Some(self.target.executed(token, outcome))
    }

    /// Flushes every file.
    fn flush_all(&mut self, token: Token) -> Option<Step> {
        let files = self.media.values().filter_map(|medium| match medium {
            Medium::File(file) => Some(file),
            Medium::Memory(_) | Medium::Null => None,
        });
        let mut count = 0;
        for file in files {
            count += 1;
            self.accesses.as_mut()?.submit(file, token, Access::Flush, false);
        }
        if count == 0 {
            return Some(self.target.executed(token, Ok(())));
        }
        self.flushes.insert(token, (count, Ok(())));
        None
    }

    /// A file has been accessed.
    pub(super) fn file_accessed(
        &mut self,
        token: Token,
        outcome: Outcome,
        tell: &mut impl FnMut(News),
    ) {
        let mut outcome = outcome;
        if let Some((left, so_far)) = self.flushes.get_mut(&token) {
            *left -= 1;
            *so_far = so_far.and(outcome.map(|_| ()));
            if *left > 0 {
                return;
            }
            outcome = so_far.map(|()| Vec::new());
            self.flushes.remove(&token);
        }
        // The connection may have ended meanwhile.
        let link = self.by_queue.get(&token.queue).and_then(|qpn| self.links.get(qpn));
        if let (Some(link), Ok(bytes)) = (link, &outcome) {
            link.write(token.slot, bytes);
        }
        let step = self.target.executed(token, outcome.map(|_| ()));
        self.carry_out(step, tell);
    }
}

/// Accesses memory. Returns the ranges that are still to be zeroed.
fn in_memory(
    memory: &mut [u8],
    link: &Link,
    slot: u16,
    io: Io,
) -> Result<Vec<Range<u64>>, IoError> {
    let range = |offset: u64, len: u32| offset..offset.saturating_add(len.into());
    match io {
        Io::Read { offset, len } => link.write(slot, part(memory, range(offset, len))?),
        Io::Write { offset, len, from } => {
            link.read(slot, in_capsule(from), part(memory, range(offset, len))?);
        }
        Io::Compare { offset, len, with } => {
            let mut bytes = vec![0; len as usize];
            link.read(slot, in_capsule(with), &mut bytes);
            if part(memory, range(offset, len))? != bytes {
                return Err(IoError::Differs);
            }
        }
        Io::WriteZeroes(range) => return Ok(vec![range]),
        Io::Deallocate(ranges) => return Ok(ranges),
        Io::Flush => {}
    }
    Ok(Vec::new())
}

fn nowhere(io: &Io) -> Result<(), IoError> {
    match io {
        Io::Compare { .. } => Err(IoError::Differs),
        _ => Ok(()),
    }
}

fn of_file(link: &Link, slot: u16, io: Io) -> Access {
    let copy = |from: Source, len: u32| {
        let mut bytes = vec![0; len as usize];
        link.read(slot, in_capsule(from), &mut bytes);
        bytes
    };
    match io {
        Io::Read { offset, len } => Access::Read { offset, len: len as usize },
        Io::Write { offset, len, from } => Access::Write { offset, bytes: copy(from, len) },
        Io::Compare { offset, len, with } => Access::Compare { offset, bytes: copy(with, len) },
        Io::WriteZeroes(range) => Access::Zero(range),
        Io::Deallocate(ranges) => Access::Deallocate(ranges),
        Io::Flush => Access::Flush,
    }
}
