//! The result directory of a sweep: existing and new results, and those of Slurm tasks to collect.
//!
//! `results.jsonl` has the results, `sweep.json` identifies the scenario. Tasks write
//! `task-N.jsonl`. Files are locked while written.

use super::grid::Point;
use super::slurm;
use crate::problem::Problem;
use crate::sim::{Failure, Opened};
use longhaul_bench::{Point as Place, Record, ResultFile, ResultWriter};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const RESULTS: &str = "results.jsonl";
const MANIFEST: &str = "sweep.json";

/// Contents of `sweep.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Manifest {
    schema: u32,
    /// Digest of the scenario file, of the files to which it refers, and of the program version.
    digest: String,
    file: PathBuf,
    /// A Slurm job that was submitted but not collected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<String>,
}

/// A store of results.
pub struct Store {
    directory: PathBuf,
    path: PathBuf,
    writer: ResultWriter,
    /// The same file, for its lock and for syncing to disk.
    file: File,
    there: BTreeSet<(Place, u64)>,
    manifest: Option<Manifest>,
}

/// Identifies the scenario of results: FNV-1a of the program's version and of the texts.
pub fn digest(opened: &Opened) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut take = |text: &str| {
        for byte in text.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    take(env!("CARGO_PKG_VERSION"));
    take(&opened.text);
    for (name, text) in opened.files() {
        take(&name);
        take(&text);
    }
    format!("{hash:016x}")
}

impl Store {
    /// Opens or creates the results of the scenario with this digest, and collects task results.
    pub fn open(directory: &Path, digest: &str, file: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(directory).map_err(|e| Problem::io("create", directory, &e))?;
        let (path, manifest_path) = (directory.join(RESULTS), directory.join(MANIFEST));
        let manifest = match read_manifest(&manifest_path)? {
            Some(manifest) if manifest.digest != digest => {
                let cause = format!(
                    "{} has results of a previous version of {}, or of another version of this \
                     program",
                    directory.display(),
                    manifest.file.display()
                );
                return Err(Failure::Value(Problem::new(
                    cause,
                    "give another --out, or remove them",
                )));
            }
            Some(manifest) => manifest,
            None if path.exists() => {
                let cause = format!("{} does not belong to a sweep", path.display());
                return Err(Failure::Value(Problem::new(cause, "give another --out")));
            }
            None => {
                let manifest = Manifest {
                    schema: 1,
                    digest: digest.to_owned(),
                    file: file.to_owned(),
                    job: None,
                };
                write_manifest(&manifest_path, &manifest)?;
                manifest
            }
        };
        let mut store = Store::of_file(directory, path)?;
        store.manifest = Some(manifest);
        store.collect()?;
        Ok(store)
    }

    /// Opens or creates the results of one task of a job.
    pub fn open_share(directory: &Path, digest: &str, number: usize) -> Result<Self, Failure> {
        let manifest = read_manifest(&directory.join(MANIFEST))?;
        if manifest.is_none_or(|manifest| manifest.digest != digest) {
            let cause = format!(
                "{} does not belong to this sweep, or the file has changed",
                directory.display()
            );
            return Err(Failure::Value(Problem::new(cause, "submit the job again")));
        }
        let mut store = Store::of_file(directory, directory.join(format!("task-{number}.jsonl")))?;
        let results = directory.join(RESULTS);
        if results.exists() {
            let file = ResultFile::read(&results).map_err(|e| Problem::plain(e.to_string()))?;
            store.there.extend(file.records.iter().filter_map(key));
        }
        Ok(store)
    }

    fn of_file(directory: &Path, path: PathBuf) -> Result<Self, Failure> {
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = file.map_err(|e| Problem::io("write", &path, &e))?;
        lock(&file, &path)?;
        let (writer, there) =
            ResultWriter::resume(&path).map_err(|e| Problem::plain(e.to_string()))?;
        let there = there.records.iter().filter_map(key).collect();
        Ok(Store { directory: directory.to_owned(), path, writer, file, there, manifest: None })
    }

    /// The file of results.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a point has a result.
    pub fn has(&self, point: &Point) -> bool {
        self.there.contains(&(point.place.clone(), point.seed))
    }

    /// Adds a result, which is on disk when this returns.
    pub fn add(&mut self, record: &Record) -> Result<(), Problem> {
        self.writer.record(record).map_err(|e| Problem::plain(e.to_string()))?;
        self.file.sync_data().map_err(|e| Problem::io("write", &self.path, &e))?;
        self.there.extend(key(record));
        Ok(())
    }

    /// Collects task results.
    pub fn collect(&mut self) -> Result<(), Failure> {
        for part in self.parts()? {
            let file = File::open(&part).map_err(|e| Problem::io("read", &part, &e))?;
            lock(&file, &part)?;
            let found = ResultFile::read(&part).map_err(|e| Problem::plain(e.to_string()))?;
            for record in &found.records {
                if key(record).is_some_and(|key| !self.there.contains(&key)) {
                    self.add(record)?;
                }
            }
            std::fs::remove_file(&part).map_err(|e| Problem::io("remove", &part, &e))?;
        }
        Ok(())
    }

    /// Number of lines in the files of tasks.
    pub fn lines_of_tasks(&self) -> usize {
        let lines = |path: PathBuf| {
            std::fs::read(path)
                .map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count())
        };
        self.parts().map_or(0, |parts| parts.into_iter().map(lines).sum())
    }

    fn parts(&self) -> Result<Vec<PathBuf>, Problem> {
        let io = |e| Problem::io("read", &self.directory, &e);
        let mut parts = Vec::new();
        for entry in std::fs::read_dir(&self.directory).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.strip_prefix("task-").and_then(|rest| rest.strip_suffix(".jsonl")).is_some() {
                parts.push(path);
            }
        }
        parts.sort();
        Ok(parts)
    }

    /// The job that was submitted but not collected.
    pub fn job(&self) -> Option<&str> {
        self.manifest.as_ref().and_then(|manifest| manifest.job.as_deref())
    }

    /// Sets or clears the job.
    pub fn set_job(&mut self, job: Option<&str>) -> Result<(), Problem> {
        if let Some(manifest) = &mut self.manifest {
            manifest.job = job.map(str::to_owned);
            write_manifest(&self.directory.join(MANIFEST), manifest)?;
        }
        Ok(())
    }

    /// Fails if a job is already running the same points.
    pub fn refuse_running_job(&mut self) -> Result<(), Failure> {
        let Some(job) = self.job() else { return Ok(()) };
        if slurm::is_known(job) {
            let cause = format!("Slurm's job {job} runs these points");
            let cure = format!("wait for it with --executor slurm, or end it: scancel {job}");
            return Err(Failure::Other(Problem::new(cause, cure)));
        }
        Ok(self.set_job(None)?)
    }
}

fn key(record: &Record) -> Option<(Place, u64)> {
    Some((record.point.clone(), record.provenance.as_ref()?.seed?))
}

fn lock(file: &File, path: &Path) -> Result<(), Failure> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let cause = format!("another sweep is writing {}", path.display());
            Err(Failure::Other(Problem::new(cause, "wait for it, or give another --out")))
        }
        Err(TryLockError::Error(error)) => Err(Failure::Other(Problem::io("lock", path, &error))),
    }
}

fn read_manifest(path: &Path) -> Result<Option<Manifest>, Problem> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| {
            Problem::new(format!("{} is damaged: {e}", path.display()), "give another --out")
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Problem::io("read", path, &error)),
    }
}

/// Replaces the file atomically.
fn write_manifest(path: &Path, manifest: &Manifest) -> Result<(), Problem> {
    let io = |e| Problem::io("write", path, &e);
    let text = serde_json::to_string_pretty(manifest)
        .map_err(|e| Problem::plain(format!("cannot write {}: {e}", path.display())))?;
    let new = path.with_extension("json.new");
    let mut file = File::create(&new).map_err(io)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.write_all(b"\n"))
        .and_then(|()| file.sync_all())
        .map_err(io)?;
    std::fs::rename(&new, path).map_err(io)
}
