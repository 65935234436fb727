//! A file or block device as a medium: threads with blocking calls.

use longhaul_nvme::target::IoError;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use thiserror::Error;

/// Threads of a file.
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
    file: Arc<fs::File>,
    bytes: u64,
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
        let is_there = path.exists();
        let mut options = fs::File::options();
        let options = options.read(true).write(true).create(create.is_some());
        let mut file = options.open(path).map_err(failed("open"))?;
        if let Some(bytes) = create.filter(|_| !is_there) {
            file.set_len(bytes).map_err(failed("extend"))?;
        }
        // A block device has no length in its metadata.
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed("find the size of"))?;
        Ok(File { file: Arc::new(file), bytes })
    }

    /// Length in bytes when it was opened.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Threads that access files. Dropping them waits for what they do.
pub(crate) struct Workers<T> {
    jobs: Option<Sender<(Arc<fs::File>, Job<T>)>>,
    finished: Sender<Done<T>>,
    done: Receiver<Done<T>>,
    threads: Vec<JoinHandle<()>>,
    outstanding: usize,
}

type Jobs<T> = Arc<Mutex<Receiver<(Arc<fs::File>, Job<T>)>>>;

impl<T: Send + 'static> Workers<T> {
    pub(crate) fn start() -> Self {
        let (jobs, queue) = channel();
        let queue: Jobs<T> = Arc::new(Mutex::new(queue));
        let threads = (0..THREADS).map(|_| {
            let queue = Arc::clone(&queue);
            thread::spawn(move || work(&queue))
        });
        let threads = threads.collect();
        let (finished, done) = channel();
        Workers { jobs: Some(jobs), finished, done, threads, outstanding: 0 }
    }

    /// Queues an access. With `durable` the blocks that it reads or writes are on stable storage.
    pub(crate) fn submit(&mut self, file: &File, of: T, access: Access, durable: bool) {
        let job = Job { of, access, durable, done: self.finished.clone() };
        if let Some(jobs) = &self.jobs {
            self.outstanding += 1;
            // The threads end only after the sender is dropped.
            let _ = jobs.send((Arc::clone(&file.file), job));
        }
    }

    /// The next completed access.
    pub(crate) fn poll(&mut self) -> Option<(T, Outcome)> {
        let done = self.done.try_recv().ok()?;
        self.outstanding -= 1;
        Some(done)
    }

    /// Number of accesses whose outcome [`Workers::poll`] has not returned.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }
}

impl<T> Drop for Workers<T> {
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
        let outcome = if durable { run_durably(&file, access) } else { run(&file, access) };
        // The receiver is gone when the target has ended.
        let _ = done.send((of, outcome));
    }
}

fn run_durably(file: &fs::File, access: Access) -> Outcome {
    if access.is_read() {
        flush(file)?;
        return run(file, access);
    }
    let outcome = run(file, access)?;
    flush(file)?;
    Ok(outcome)
}

fn flush(file: &fs::File) -> Result<(), IoError> {
    file.sync_data().map_err(|error| of_write(&error))
}

fn run(file: &fs::File, access: Access) -> Outcome {
    match access {
        Access::Read { offset, len } => read(file, offset, len),
        Access::Write { offset, bytes } => {
            file.write_all_at(&bytes, offset).map_err(|error| of_write(&error))?;
            Ok(Vec::new())
        }
        Access::Compare { offset, bytes } => {
            let found = read(file, offset, bytes.len())?;
            if found == bytes { Ok(Vec::new()) } else { Err(IoError::Differs) }
        }
        Access::Zero(range) => zero(file, range),
        Access::Deallocate(ranges) => {
            for range in ranges {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let len = range.end.saturating_sub(range.start);
                match fallocate(file, flags, range.start, len) {
                    Err(Errno::OPNOTSUPP) => {
                        zero(file, range)?;
                    }
                    outcome => outcome.map_err(|error| of_write(&error.into()))?,
                }
            }
            Ok(Vec::new())
        }
        Access::Flush => {
            flush(file)?;
            Ok(Vec::new())
        }
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

fn zero(file: &fs::File, range: Range<u64>) -> Outcome {
    let len = range.end.saturating_sub(range.start);
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, flags, range.start, len) {
        Err(Errno::OPNOTSUPP) => {}
        outcome => {
            outcome.map_err(|error| of_write(&error.into()))?;
            return Ok(Vec::new());
        }
    }
    let zeros = vec![0; ZEROS];
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(ZEROS as u64) as usize;
        file.write_all_at(&zeros[..len], at).map_err(|error| of_write(&error))?;
        at += len as u64;
    }
    Ok(Vec::new())
}

fn of_write(error: &io::Error) -> IoError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            IoError::Full
        }
        _ => IoError::Write,
    }
}
