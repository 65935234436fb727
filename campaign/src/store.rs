//! The result directory of a grid of runs: existing and new results, and those of tasks to collect.
//!
//! `results.jsonl` has the results, a manifest identifies what they are of. Tasks write
//! `task-N.jsonl`, and `task-N.running` for the run in progress. Files are locked while written. A
//! run is finished when its record is on disk.

use crate::process::LOOK_AGAIN;
use longhaul_bench::{Experiment, Point, ReadError, Record, ResultFile, ResultWriter, WriteError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

const RESULTS: &str = "results.jsonl";
/// Time in which locks may get free: a program that was just started has the descriptors of its
/// parent until it executes.
const LOCK_WITHIN: Duration = Duration::from_millis(200);

/// Identifies what results depend on: FNV-1a of texts.
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Digest {
    /// Of nothing but the version of this program.
    #[expect(clippy::new_without_default, reason = "a digest of nothing is no value of a type")]
    pub fn new() -> Self {
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        digest.take(env!("CARGO_PKG_VERSION"));
        digest
    }

    /// Adds a text.
    pub fn take(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Its 16 digits.
    pub fn finish(self) -> String {
        format!("{:016x}", self.0)
    }
}

/// Why results cannot be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The directory has results of something else.
    #[error(
        "{} has results of a previous version of {}, or of another version of this program",
        directory.display(), file.display()
    )]
    OtherVersion {
        /// The directory.
        directory: PathBuf,
        /// The file whose results they are.
        file: PathBuf,
    },
    /// Results without a manifest.
    #[error("{} does not belong to a {kind}", path.display())]
    NotOurs {
        /// The results.
        path: PathBuf,
        /// Sweep or campaign.
        kind: &'static str,
    },
    /// A task whose directory has another manifest.
    #[error("{} does not belong to this {kind}, or the file has changed", directory.display())]
    OtherTask {
        /// The directory.
        directory: PathBuf,
        /// Sweep or campaign.
        kind: &'static str,
    },
    /// Another process writes the results.
    #[error("another {kind} is writing {}", path.display())]
    Busy {
        /// The results.
        path: PathBuf,
        /// Sweep or campaign.
        kind: &'static str,
    },
    /// The manifest cannot be parsed.
    #[error("{} is damaged: {error}", path.display())]
    Damaged {
        /// The manifest.
        path: PathBuf,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// A result file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A result cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The operating system's error.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

fn io_error<'a>(action: &'static str, path: &'a Path) -> impl Fn(io::Error) -> StoreError + 'a {
    move |error| StoreError::Io { action, path: path.to_owned(), error }
}

/// Contents of the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Manifest {
    schema: u32,
    /// Digest of what the results depend on.
    digest: String,
    file: PathBuf,
    /// A Slurm job that was submitted but not collected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<String>,
}

/// A store of results.
pub struct Store {
    /// Sweep or campaign, the name of the manifest.
    kind: &'static str,
    directory: PathBuf,
    path: PathBuf,
    writer: ResultWriter,
    /// The same file, for its lock and for syncing to disk.
    file: File,
    records: Vec<Record>,
    there: BTreeSet<(Point, u64)>,
    role: Role,
}

/// Whose results a store has.
enum Role {
    /// Of all runs.
    Whole(Manifest),
    /// Of a task, with the file of its run in progress.
    Task(PathBuf),
}

/// What to do about results that a task is writing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Left,
    Refused,
}

impl Store {
    /// Opens or creates the results of what `digest` identifies and `file` declares, and collects
    /// those of tasks that have ended. `kind` is `sweep` or `campaign`.
    ///
    /// # Errors
    /// Results of something else, another writer, or the operating system's.
    pub fn open(
        kind: &'static str,
        directory: &Path,
        digest: &str,
        file: &Path,
    ) -> Result<Self, StoreError> {
        std::fs::create_dir_all(directory).map_err(io_error("create", directory))?;
        let path = directory.join(RESULTS);
        let manifest_path = manifest_path(directory, kind);
        let manifest = match read_manifest(&manifest_path)? {
            Some(manifest) if manifest.digest != digest => {
                let directory = directory.to_owned();
                return Err(StoreError::OtherVersion { directory, file: manifest.file });
            }
            Some(manifest) => manifest,
            None if path.exists() => return Err(StoreError::NotOurs { path, kind }),
            None => {
                let (digest, file) = (digest.to_owned(), file.to_owned());
                let manifest = Manifest { schema: 1, digest, file, job: None };
                write_manifest(&manifest_path, &manifest)?;
                manifest
            }
        };
        let mut store = Store::of_file(kind, directory, path, Role::Whole(manifest))?;
        store.collect_but(Written::Left)?;
        Ok(store)
    }

    /// Opens or creates the results of one task of a job.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_share(
        kind: &'static str,
        directory: &Path,
        digest: &str,
        number: usize,
    ) -> Result<Self, StoreError> {
        let manifest = read_manifest(&manifest_path(directory, kind))?;
        if manifest.is_none_or(|manifest| manifest.digest != digest) {
            return Err(StoreError::OtherTask { directory: directory.to_owned(), kind });
        }
        let path = directory.join(format!("task-{number}.jsonl"));
        let role = Role::Task(path.with_extension("running"));
        let mut store = Store::of_file(kind, directory, path, role)?;
        let results = directory.join(RESULTS);
        if results.exists() {
            let file = ResultFile::read(&results)?;
            store.there.extend(file.records.iter().filter_map(key));
        }
        Ok(store)
    }

    fn of_file(
        kind: &'static str,
        directory: &Path,
        path: PathBuf,
        role: Role,
    ) -> Result<Self, StoreError> {
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = file.map_err(io_error("write", &path))?;
        lock(&file, &path, kind, lock_deadline())?;
        let (writer, there) = ResultWriter::resume(&path)?;
        let records = there.records;
        let there = records.iter().filter_map(key).collect();
        let directory = directory.to_owned();
        Ok(Store { kind, directory, path, writer, file, records, there, role })
    }

    /// The file of results.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// All results.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns whether run `number` of a point, its repeat or its seed, has a result.
    pub fn has(&self, place: &Point, number: u64) -> bool {
        self.there.contains(&(place.clone(), number))
    }

    /// Returns whether the run of `record` has a result.
    pub fn has_record(&self, record: &Record) -> bool {
        key(record).is_some_and(|key| self.there.contains(&key))
    }

    /// Notes that a task begins a run, with the result that the run has if Slurm kills the task. A
    /// store of all runs notes nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn begin(&mut self, record: &Record) -> Result<(), StoreError> {
        let Role::Task(running) = &self.role else { return Ok(()) };
        let failed = io_error("write", running);
        let text = serde_json::to_vec(record).map_err(|error| failed(error.into()))?;
        std::fs::write(running, text).map_err(failed)
    }

    /// Adds a result, which is on disk when this returns.
    ///
    /// # Errors
    /// It cannot be written; earlier results are intact.
    pub fn add(&mut self, record: &Record) -> Result<(), StoreError> {
        self.writer.record(record)?;
        self.file.sync_data().map_err(io_error("write", &self.path))?;
        self.there.extend(key(record));
        self.records.push(record.clone());
        if let Role::Task(running) = &self.role {
            // The run has a record, so a file that stays has no effect.
            let _ = std::fs::remove_file(running);
        }
        Ok(())
    }

    /// Adds the description of an experiment to results that are empty. Those of a task have none.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn describe(&mut self, experiment: &Experiment) -> Result<(), StoreError> {
        match self.role {
            Role::Whole(_) if self.records.is_empty() => Ok(self.writer.describe(experiment)?),
            Role::Whole(_) | Role::Task(_) => Ok(()),
        }
    }

    /// Removes the results of runs that failed. Returns their number.
    ///
    /// # Errors
    /// The remaining results cannot be written; all results are intact.
    pub fn forget_failed(&mut self) -> Result<usize, StoreError> {
        let is_kept = |record: &&Record| record.failed.is_empty();
        let kept: Vec<Record> = self.records.iter().filter(is_kept).cloned().collect();
        let failed = self.records.len() - kept.len();
        if failed == 0 {
            return Ok(0);
        }
        let new = self.path.with_extension("jsonl.new");
        let mut writer = ResultWriter::create(&new)?;
        for experiment in ResultFile::read(&self.path)?.experiments {
            writer.describe(&experiment)?;
        }
        for record in &kept {
            writer.record(record)?;
        }
        let file = OpenOptions::new().append(true).open(&new).map_err(io_error("write", &new))?;
        lock(&file, &new, self.kind, lock_deadline())?;
        file.sync_all().map_err(io_error("write", &new))?;
        std::fs::rename(&new, &self.path).map_err(io_error("replace", &self.path))?;
        self.there = kept.iter().filter_map(key).collect();
        (self.writer, self.file, self.records) = (writer, file, kept);
        Ok(failed)
    }

    /// Collects task results.
    ///
    /// # Errors
    /// A task still writes, or the operating system's.
    pub fn collect(&mut self) -> Result<(), StoreError> {
        self.collect_but(Written::Refused)
    }

    fn collect_but(&mut self, written: Written) -> Result<(), StoreError> {
        // One for all files: hundreds of tasks may be writing.
        let deadline = lock_deadline();
        for part in self.files_of_tasks(".jsonl")? {
            let file = File::open(&part).map_err(io_error("read", &part))?;
            match lock(&file, &part, self.kind, deadline) {
                Err(StoreError::Busy { .. }) if written == Written::Left => continue,
                locked => locked?,
            }
            let found = ResultFile::read(&part)?;
            for record in &found.records {
                if key(record).is_some_and(|key| !self.there.contains(&key)) {
                    self.add(record)?;
                }
            }
            std::fs::remove_file(&part).map_err(io_error("remove", &part))?;
        }
        Ok(())
    }

    /// Number of results in the files of tasks.
    pub fn results_of_tasks(&self) -> usize {
        let lines = |path: PathBuf| {
            std::fs::read(path)
                .map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
        };
        self.files_of_tasks(".jsonl").map_or(0, |parts| parts.into_iter().map(lines).sum())
    }

    /// The runs during which tasks of a job ended, with the numbers of the tasks. They are
    /// forgotten. Those that are not whole are left out.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn take_unfinished(&mut self) -> Result<Vec<(usize, Record)>, StoreError> {
        let mut unfinished = Vec::new();
        for path in self.files_of_tasks(".running")? {
            let text = std::fs::read(&path).map_err(io_error("read", &path))?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let number = name.strip_prefix("task-").and_then(|number| number.parse().ok());
            if let (Some(number), Ok(record)) = (number, serde_json::from_slice(&text)) {
                unfinished.push((number, record));
            }
            std::fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
        Ok(unfinished)
    }

    /// Files `task-N` with this end.
    fn files_of_tasks(&self, end: &str) -> Result<Vec<PathBuf>, StoreError> {
        let mut files = Vec::new();
        let entries = std::fs::read_dir(&self.directory);
        for entry in entries.map_err(io_error("read", &self.directory))? {
            let path = entry.map_err(io_error("read", &self.directory))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.strip_prefix("task-").is_some_and(|rest| rest.ends_with(end)) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// The Slurm job that was submitted but not collected.
    pub fn job(&self) -> Option<&str> {
        match &self.role {
            Role::Whole(manifest) => manifest.job.as_deref(),
            Role::Task(_) => None,
        }
    }

    /// Sets or clears the job.
    ///
    /// # Errors
    /// The manifest cannot be written.
    pub fn set_job(&mut self, job: Option<&str>) -> Result<(), StoreError> {
        if let Role::Whole(manifest) = &mut self.role {
            manifest.job = job.map(str::to_owned);
            write_manifest(&manifest_path(&self.directory, self.kind), manifest)?;
        }
        Ok(())
    }
}

/// The point of a record, and the number of its run there.
fn key(record: &Record) -> Option<(Point, u64)> {
    let provenance = record.provenance.as_ref()?;
    let number = provenance.repeat.map(u64::from).or(provenance.seed)?;
    Some((record.point.clone(), number))
}

fn lock_deadline() -> Instant {
    Instant::now() + LOCK_WITHIN
}

fn lock(file: &File, path: &Path, kind: &'static str, deadline: Instant) -> Result<(), StoreError> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(LOOK_AGAIN),
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Busy { path: path.to_owned(), kind });
            }
            Err(TryLockError::Error(error)) => return Err(io_error("lock", path)(error)),
        }
    }
}

fn manifest_path(directory: &Path, kind: &str) -> PathBuf {
    directory.join(format!("{kind}.json"))
}

fn read_manifest(path: &Path) -> Result<Option<Manifest>, StoreError> {
    match std::fs::read_to_string(path) {
        Ok(text) => match serde_json::from_str(&text) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) => Err(StoreError::Damaged { path: path.to_owned(), error }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("read", path)(error)),
    }
}

/// Replaces the file atomically.
fn write_manifest(path: &Path, manifest: &Manifest) -> Result<(), StoreError> {
    let failed = io_error("write", path);
    let mut text = serde_json::to_vec_pretty(manifest).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    let new = path.with_extension("json.new");
    let mut file = File::create(&new).map_err(&failed)?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(&failed)?;
    std::fs::rename(&new, path).map_err(&failed)
}

#[cfg(test)]
mod tests;
