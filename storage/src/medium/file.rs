//! A file or block device as a medium: io_uring where the kernel permits it, and otherwise, as for
//! accesses that change its layout, threads with blocking calls.

#[allow(unsafe_code, reason = "io_uring refers to memory that this module owns")]
mod ring;

use longhaul_nvme::target::IoError;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;
use std::fs;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use ring::Ring;
use thiserror::Error;

/// Threads for all files.
const THREADS: usize = 16;
/// Bytes of zeros written at once where a file system has no call for them.
const ZEROS: usize = 64 << 10;

/// Why a file cannot be served.
#[derive(Debug, Error)]
pub enum FileError {
    /// The file cannot be opened or examined.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another program serves it, or has it mounted.
    #[error("{} is in use by another program", .0.display())]
    InUse(PathBuf),
}

/// An access.
#[derive(Debug)]
pub(crate) enum Access {
    /// Read this many bytes.
    Read { offset: u64, len: usize },
    /// Write.
    Write { offset: u64, bytes: Vec<u8> },
    /// Compare.
    Compare { offset: u64, bytes: Vec<u8> },
    /// Write zeros.
    Zero(Range<u64>),
    /// Deallocate; the ranges then read as zeros.
    Deallocate(Vec<Range<u64>>),
    /// Make earlier writes permanent.
    Flush,
}

impl Access {
    /// True if it returns what the file has, rather than changes it.
    fn is_read(&self) -> bool {
        matches!(self, Access::Read { .. } | Access::Compare { .. })
    }
}

/// Outcome of an access: the bytes of a read.
pub(crate) type Outcome = Result<Vec<u8>, IoError>;

type Done<T> = (T, Outcome);

struct Job<T> {
    of: T,
    access: Access,
    /// Past the kernel's cache.
    durable: bool,
    done: Sender<Done<T>>,
}

/// An open file or block device.
pub struct File {
    file: Arc<Opened>,
    bytes: u64,
}

/// What threads share of a file.
struct Opened {
    file: fs::File,
    /// A block device has no length in its metadata, and cannot shrink.
    is_device: bool,
    /// Writes were lost: a flush failed. The kernel reports that once.
    has_lost_writes: AtomicBool,
}

impl File {
    /// Opens `path`. A regular file that does not exist is created with `create` bytes, sparse.
    ///
    /// # Errors
    /// If that fails.
    pub fn open(path: &Path, create: Option<u64>) -> Result<Self, FileError> {
        let failed = |action| {
            let path = path.to_owned();
            move |source| FileError::Io { action, path, source }
        };
        let found = fs::metadata(path);
        let (is_there, is_device) =
            (found.is_ok(), found.is_ok_and(|found| found.file_type().is_block_device()));
        let mut options = fs::File::options();
        let options = options.read(true).write(true).create(create.is_some());
        if is_device {
            options.custom_flags(OFlags::EXCL.bits().cast_signed());
        }
        let opened = options.open(path);
        if is_device && opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
        {
            return Err(FileError::InUse(path.to_owned()));
        }
        let mut file = opened.map_err(failed("open"))?;
        // A file system without locks is served, too.
        if let Err(Errno::WOULDBLOCK) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(FileError::InUse(path.to_owned()));
        }
        if let Some(bytes) = create.filter(|_| !is_there) {
            file.set_len(bytes).map_err(failed("extend"))?;
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed("find the size of"))?;
        let opened = Opened { file, is_device, has_lost_writes: AtomicBool::new(false) };
        Ok(File { file: Arc::new(opened), bytes })
    }

    /// Length in bytes when it was opened.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Accesses of files in progress. Dropping them waits for their end.
pub(crate) struct Accesses<T> {
    ring: Option<Ring<T>>,
    threads: Option<Threads<T>>,
    /// Accesses whose outcome [`Accesses::poll`] has not returned.
    outstanding: usize,
}

impl<T: Copy + Send + 'static> Accesses<T> {
    /// By io_uring if the kernel permits it.
    pub(crate) fn new() -> Self {
        Accesses { ring: Ring::new(), threads: None, outstanding: 0 }
    }

    /// Starts an access. With `durable` the blocks that it reads or writes are on stable storage.
    pub(crate) fn submit(&mut self, file: &File, of: T, access: Access, durable: bool) {
        self.outstanding += 1;
        let access = match &mut self.ring {
            Some(ring) => match ring.submit(&file.file, of, access, durable) {
                Ok(()) => return,
                Err(access) => access,
            },
            None => access,
        };
        let threads = self.threads.get_or_insert_with(Threads::start);
        threads.submit(&file.file, of, access, durable);
    }

    /// The next completed access.
    pub(crate) fn poll(&mut self) -> Option<(T, Outcome)> {
        let by_ring = self.ring.as_mut().and_then(Ring::poll);
        let done = by_ring.or_else(|| self.threads.as_ref()?.done.try_recv().ok())?;
        self.outstanding -= 1;
        Some(done)
    }

    /// Accesses whose outcome [`Accesses::poll`] has not returned.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }
}

/// Threads that access files. Dropping them waits for what they do.
struct Threads<T> {
    jobs: Option<Sender<(Arc<Opened>, Job<T>)>>,
    finished: Sender<Done<T>>,
    done: Receiver<Done<T>>,
    threads: Vec<JoinHandle<()>>,
}

type Jobs<T> = Arc<Mutex<Receiver<(Arc<Opened>, Job<T>)>>>;

impl<T: Send + 'static> Threads<T> {
    fn start() -> Self {
        let (jobs, queue) = channel();
        let queue: Jobs<T> = Arc::new(Mutex::new(queue));
        let threads = (0..THREADS).map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || work(&queue))
        });
        let threads = threads.collect();
        let (finished, done) = channel();
        Threads { jobs: Some(jobs), finished, done, threads }
    }

    fn submit(&self, file: &Arc<Opened>, of: T, access: Access, durable: bool) {
        let job = Job { of, access, durable, done: self.finished.clone() };
        if let Some(jobs) = &self.jobs {
            // The threads end only after the sender is dropped.
            let _ = jobs.send((Arc::clone(file), job));
        }
    }
}

impl<T> Drop for Threads<T> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to finish.
            let _ = thread.join();
        }
    }
}

fn work<T>(queue: &Jobs<T>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((file, Job { of, access, durable, done })) = next else { return };
        let outcome = if durable { file.run_durably(access) } else { file.run(access) };
        // The receiver is gone when the target has ended.
        let _ = done.send((of, outcome));
    }
}

impl Opened {
    fn run_durably(&self, access: Access) -> Outcome {
        if access.is_read() {
            self.flush()?;
            return self.run(access);
        }
        let outcome = self.run(access)?;
        self.flush()?;
        Ok(outcome)
    }

    fn flush(&self) -> Result<(), IoError> {
        if self.has_lost_writes.load(Ordering::Relaxed) {
            return Err(IoError::Write);
        }
        self.file.sync_data().map_err(|error| self.lost_writes(&error))
    }

    /// Notes that a flush failed.
    fn lost_writes(&self, error: &io::Error) -> IoError {
        self.has_lost_writes.store(true, Ordering::Relaxed);
        of_write(error)
    }

    /// Refuses what lies past the end of a file that has shrunk since it was opened: a write would
    /// extend it.
    fn check(&self, range: &Range<u64>) -> Result<(), IoError> {
        if self.is_device {
            return Ok(());
        }
        match self.file.metadata() {
            Ok(metadata) if range.end <= metadata.len() => Ok(()),
            Ok(_) => Err(IoError::Gone),
            Err(_) => Err(IoError::Write),
        }
    }

    fn run(&self, access: Access) -> Outcome {
        match access {
            Access::Read { offset, len } => read(&self.file, offset, len),
            Access::Write { offset, bytes } => {
                self.check(&(offset..offset.saturating_add(bytes.len() as u64)))?;
                self.file.write_all_at(&bytes, offset).map_err(|error| of_write(&error))?;
                Ok(Vec::new())
            }
            Access::Compare { offset, bytes } => {
                let found = read(&self.file, offset, bytes.len())?;
                if found == bytes { Ok(Vec::new()) } else { Err(IoError::Differs) }
            }
            Access::Zero(range) => self.zero(FallocateFlags::ZERO_RANGE, range),
            Access::Deallocate(ranges) => {
                for range in ranges {
                    self.zero(FallocateFlags::PUNCH_HOLE, range)?;
                }
                Ok(Vec::new())
            }
            Access::Flush => {
                self.flush()?;
                Ok(Vec::new())
            }
        }
    }

    /// Makes a range read as zeros, by this way of the file system or by writing them.
    fn zero(&self, way: FallocateFlags, range: Range<u64>) -> Outcome {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(Vec::new());
        }
        self.check(&range)?;
        match fallocate(&self.file, way | FallocateFlags::KEEP_SIZE, range.start, len) {
            // A device has larger blocks than the namespace, or neither has the call.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            outcome => {
                outcome.map_err(|error| of_write(&error.into()))?;
                return Ok(Vec::new());
            }
        }
        let zeros = vec![0; ZEROS];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(ZEROS as u64) as usize;
            self.file.write_all_at(&zeros[..len], at).map_err(|error| of_write(&error))?;
            at += len as u64;
        }
        Ok(Vec::new())
    }
}

fn read(file: &fs::File, offset: u64, len: usize) -> Outcome {
    let mut bytes = vec![0; len];
    match file.read_exact_at(&mut bytes, offset) {
        Ok(()) => Ok(bytes),
        // The file is shorter than it was when it was opened.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(IoError::Gone),
        Err(_) => Err(IoError::Read),
    }
}

fn of_write(error: &io::Error) -> IoError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            IoError::Full
        }
        _ => IoError::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of one access.
    fn outcome(
        accesses: &mut Accesses<u32>,
        file: &File,
        access: Access,
        durable: bool,
    ) -> Outcome {
        accesses.submit(file, 7, access, durable);
        assert_eq!(accesses.outstanding(), 1);
        loop {
            if let Some((of, outcome)) = accesses.poll() {
                assert_eq!((of, accesses.outstanding()), (7, 0));
                return outcome;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn the_ring_and_the_threads_have_the_same_outcomes() {
        let by_threads = || Accesses { ring: None, ..Accesses::new() };
        for (name, mut accesses) in [("ring", Accesses::new()), ("threads", by_threads())] {
            let path =
                std::env::temp_dir().join(format!("longhaul-access-{name}-{}", std::process::id()));
            let file = File::open(&path, Some(1 << 20)).unwrap();
            let mut access = |access, durable| outcome(&mut accesses, &file, access, durable);
            let bytes: Vec<u8> = (0..65536_u32).map(|at| (at / 8 * 7) as u8).collect();
            let write = |offset| Access::Write { offset, bytes: bytes.clone() };
            for durable in [false, true] {
                assert_eq!(access(write(4096), durable), Ok(Vec::new()), "{name}");
                let read = Access::Read { offset: 4096, len: 65536 };
                assert_eq!(access(read, durable).as_ref(), Ok(&bytes), "{name}");
                let same = Access::Compare { offset: 4096, bytes: bytes.clone() };
                assert_eq!(access(same, durable), Ok(Vec::new()), "{name}");
                let other = Access::Compare { offset: 4095, bytes: bytes.clone() };
                assert_eq!(access(other, durable), Err(IoError::Differs), "{name}");
            }
            assert_eq!(access(Access::Flush, false), Ok(Vec::new()));
            assert_eq!(access(Access::Zero(4096..8192), true), Ok(Vec::new()));
            assert_eq!(access(Access::Read { offset: 8192, len: 1 }, false), Ok(vec![bytes[4096]]));
            assert_eq!(access(Access::Read { offset: 4096, len: 1 }, false), Ok(vec![0]));
            let past = Access::Read { offset: (1 << 20) - 1, len: 2 };
            assert_eq!(access(past, false), Err(IoError::Gone), "{name}");
            assert_eq!(access(write((1 << 20) - 1), false), Err(IoError::Gone), "{name}");
            assert_eq!(access(Access::Read { offset: 0, len: 0 }, false), Ok(Vec::new()));
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn accesses_beyond_the_ring_s_room_wait() {
        let path = std::env::temp_dir().join(format!("longhaul-many-{}", std::process::id()));
        let file = File::open(&path, Some(1 << 20)).unwrap();
        let mut accesses = Accesses::new();
        for number in 0..5000_u32 {
            let (offset, bytes) = (u64::from(number % 256) * 4096, vec![1; 4096]);
            accesses.submit(&file, number, Access::Write { offset, bytes }, false);
        }
        let mut left = 5000;
        while left > 0 {
            if let Some((_, outcome)) = accesses.poll() {
                assert_eq!(outcome, Ok(Vec::new()));
                left -= 1;
            }
        }
        fs::remove_file(&path).unwrap();
    }

    fn opened(file: fs::File) -> Opened {
        Opened { file, is_device: false, has_lost_writes: AtomicBool::new(false) }
    }

    #[test]
    fn empty_ranges_are_deallocated() {
        let path = std::env::temp_dir().join(format!("longhaul-empty-{}", std::process::id()));
        fs::write(&path, [7; 8192]).unwrap();
        let file = opened(fs::File::options().read(true).write(true).open(&path).unwrap());
        let ranges = vec![0..0, 4096..8192, 8192..8192];
        assert_eq!(file.run(Access::Deallocate(ranges)), Ok(Vec::new()));
        let found = fs::read(&path).unwrap();
        assert!(found[..4096] == [7; 4096] && found[4096..] == [0; 4096]);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_failed_flush_fails_all_later_ones() {
        // A pipe cannot be flushed.
        let (reader, _writer) = std::io::pipe().unwrap();
        let file = opened(fs::File::from(std::os::fd::OwnedFd::from(reader)));
        assert_eq!(file.flush(), Err(IoError::Write));
        assert!(file.has_lost_writes.load(Ordering::Relaxed));
        let fine = fs::File::open("/").unwrap();
        let file = Opened { has_lost_writes: AtomicBool::new(true), ..opened(fine) };
        assert_eq!(file.run(Access::Flush), Err(IoError::Write));
    }
}
