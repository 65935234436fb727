//! Accesses of files by io_uring: the kernel carries them out without a thread of this process.

use super::{Access, Opened, Outcome, of_write};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, Probe, opcode, squeue};
use longhaul_nvme::target::IoError;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of the submission queue; the completion queue has twice as many.
const ENTRIES: u32 = 256;

/// A ring with its accesses in progress. Dropping it waits for them.
pub(super) struct Ring<T> {
    ring: IoUring,
    /// Accesses by the user data of their entries.
    slots: Vec<Option<InProgress<T>>>,
    free: Vec<usize>,
    /// Slots whose entry is still to be submitted.
    waiting: VecDeque<usize>,
    /// Entries that the kernel has not completed.
    submitted: usize,
}

/// What an access waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Earlier writes become stable, before a durable read.
    FlushFirst,
    Transfer,
    FlushLast,
}

struct InProgress<T> {
    of: T,
    file: Arc<Opened>,
    kind: Kind,
    durable: bool,
    step: Step,
    offset: u64,
    /// What is written or has been read. Its memory does not move while an entry refers to it.
    bytes: Vec<u8>,
    /// Bytes transferred.
    done: usize,
}

enum Kind {
    Read,
    Write,
    Compare { with: Vec<u8> },
    Flush,
}

/// What follows a completed entry.
enum Next {
    Submit,
    End(Outcome),
}

impl<T> InProgress<T> {
    /// An access that a ring carries out; others are returned.
    fn new(file: &Arc<Opened>, of: T, access: Access, durable: bool) -> Result<Self, Access> {
        let (kind, offset, bytes) = match access {
            Access::Read { offset, len } => (Kind::Read, offset, vec![0; len]),
            Access::Write { offset, bytes } => (Kind::Write, offset, bytes),
            Access::Compare { offset, bytes: with } => {
                let found = vec![0; with.len()];
                (Kind::Compare { with }, offset, found)
            }
            Access::Flush => (Kind::Flush, 0, Vec::new()),
            other @ (Access::Zero(_) | Access::Deallocate(_)) => return Err(other),
        };
        let step = match kind {
            Kind::Flush => Step::FlushLast,
            Kind::Read | Kind::Compare { .. } if durable => Step::FlushFirst,
            _ => Step::Transfer,
        };
        let file = Arc::clone(file);
        Ok(InProgress { of, file, kind, durable, step, offset, bytes, done: 0 })
    }

    /// Its next entry, or its outcome if there is nothing to be done.
    fn entry(&mut self) -> Result<squeue::Entry, Outcome> {
        let fd = Fd(self.file.file.as_raw_fd());
        if self.step != Step::Transfer {
            if self.file.has_lost_writes.load(Ordering::Relaxed) {
                return Err(Err(IoError::Write));
            }
            return Ok(opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build());
        }
        let at = self.offset.saturating_add(self.done as u64);
        let rest = &mut self.bytes[self.done..];
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        if matches!(self.kind, Kind::Write) {
            let end = self.offset.saturating_add(self.bytes.len() as u64);
            self.file.check(&(self.offset..end)).map_err(Err)?;
            let from = self.bytes[self.done..].as_ptr();
            return Ok(opcode::Write::new(fd, from, len).offset(at).build());
        }
        Ok(opcode::Read::new(fd, rest.as_mut_ptr(), len).offset(at).build())
    }

    /// Handles the result of its entry: a count of bytes, or a negative errno.
    fn completed(&mut self, result: i32) -> Next {
        let errno = usize::try_from(result).is_err().then(|| Errno::from_raw_os_error(-result));
        if let Some(Errno::INTR | Errno::AGAIN) = errno {
            return Next::Submit;
        }
        if self.step != Step::Transfer {
            if let Some(errno) = errno {
                return Next::End(Err(self.file.lost_writes(&errno.into())));
            }
            if self.step == Step::FlushLast {
                return Next::End(Ok(Vec::new()));
            }
            self.step = Step::Transfer;
            return Next::Submit;
        }
        let is_write = matches!(self.kind, Kind::Write);
        match (errno, result) {
            (Some(errno), _) if is_write => return Next::End(Err(of_write(&errno.into()))),
            (Some(_), _) => return Next::End(Err(IoError::Read)),
            // The file is shorter than it was when it was opened.
            (None, 0) if !self.bytes.is_empty() => {
                return Next::End(Err(if is_write { IoError::Write } else { IoError::Gone }));
            }
            (None, count) => self.done += count as usize,
        }
        if self.done < self.bytes.len() {
            return Next::Submit;
        }
        match &self.kind {
            Kind::Write if self.durable => {
                self.step = Step::FlushLast;
                Next::Submit
            }
            Kind::Write | Kind::Flush => Next::End(Ok(Vec::new())),
            Kind::Read => Next::End(Ok(std::mem::take(&mut self.bytes))),
            Kind::Compare { with } if *with == self.bytes => Next::End(Ok(Vec::new())),
            Kind::Compare { .. } => Next::End(Err(IoError::Differs)),
        }
    }
}

impl<T: Copy> Ring<T> {
    /// `None` if the kernel has no io_uring, or does not let this process use it.
    pub(super) fn new() -> Option<Self> {
        let ring = IoUring::new(ENTRIES).ok()?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).ok()?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        let can = needed.iter().all(|code| probe.is_supported(*code));
        can.then(|| Ring {
            ring,
            slots: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            submitted: 0,
        })
    }

    /// Takes an access, for the next [`Ring::poll`].
    ///
    /// # Errors
    /// The access, if a ring does not carry it out.
    pub(super) fn submit(
        &mut self,
        file: &Arc<Opened>,
        of: T,
        access: Access,
        durable: bool,
    ) -> Result<(), Access> {
        let in_progress = InProgress::new(file, of, access, durable)?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(in_progress);
        self.waiting.push_back(slot);
        Ok(())
    }

    /// The next completed access.
    pub(super) fn poll(&mut self) -> Option<(T, Outcome)> {
        loop {
            if let Some(done) = self.push_waiting() {
                return Some(done);
            }
            let entry = self.ring.completion().next()?;
            self.submitted -= 1;
            let slot = entry.user_data() as usize;
            let Some(in_progress) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            match in_progress.completed(entry.result()) {
                Next::Submit => self.waiting.push_back(slot),
                Next::End(outcome) => return self.end(slot, outcome),
            }
        }
    }

    /// Submits entries as far as there is room. Returns an access that needs none.
    fn push_waiting(&mut self) -> Option<(T, Outcome)> {
        let mut pushed = 0;
        let mut ended = None;
        while self.submitted < ENTRIES as usize
            && let Some(slot) = self.waiting.pop_front()
        {
            let Some(in_progress) = self.slots.get_mut(slot).and_then(Option::as_mut) else {
                continue;
            };
            let entry = match in_progress.entry() {
                Ok(entry) => entry.user_data(slot as u64),
                Err(outcome) => {
                    ended = self.end(slot, outcome);
                    break;
                }
            };
            // SAFETY: the entry's descriptor and memory belong to the slot, which keeps both in
            // place until the entry is completed, also when this ring is dropped.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.waiting.push_front(slot);
                break;
            }
            self.submitted += 1;
            pushed += 1;
        }
        if pushed > 0 {
            // What the kernel did not take now, it takes at the next call.
            let _ = self.ring.submit();
        }
        ended
    }

    fn end(&mut self, slot: usize, outcome: Outcome) -> Option<(T, Outcome)> {
        self.free.push(slot);
        self.slots[slot].take().map(|ended| (ended.of, outcome))
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        while self.submitted > 0 {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
                    // The kernel may still use the memory.
                    std::mem::forget(std::mem::take(&mut self.slots));
                    return;
                }
                _ => self.submitted -= self.ring.completion().count(),
            }
        }
    }
}
