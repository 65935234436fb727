//! Files of results: one JSON object per line.
//!
//! A line holds a record, or the description of an experiment. Each is written whole before the
//! next begins, so what an interrupted program leaves is a file whose last line may be cut.

use crate::experiment::Experiment;
use crate::record::{Record, SCHEMA};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A longer line is no result.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Why a file of results could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// By the operating system.
    #[error("cannot read {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Written by another version.
    #[error("{path} line {line}: schema {found}; this program reads schema {SCHEMA}")]
    Schema {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Its schema.
        found: String,
    },
    /// Not a result.
    #[error("{path} line {line}: {why}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

/// A last line that was cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

/// What a file of results holds.
#[derive(Clone, Debug, Default)]
pub struct ResultFile {
    /// Descriptions of experiments.
    pub experiments: Vec<Experiment>,
    /// Results, in the order of the file.
    pub records: Vec<Record>,
    /// The last line, when it was cut: everything before it is there.
    pub damage: Option<Damage>,
}

/// Where a file can be gone on with.
#[derive(Clone, Copy, Debug, Default)]
struct End {
    /// Bytes up to the end of the last whole line.
    whole_bytes: u64,
    /// That line lacks its end of line.
    is_open: bool,
}

/// A line, as far as it has to be known before the rest is looked at.
#[derive(Deserialize)]
struct Header {
    schema: Option<serde_json::Value>,
    description: Option<serde_json::Value>,
}

#[derive(Serialize)]
struct RecordLine<'a> {
    schema: u32,
    #[serde(flatten)]
    record: &'a Record,
}

#[derive(Serialize)]
struct DescriptionLine<'a> {
    schema: u32,
    description: &'a Experiment,
}

enum Fault {
    /// Not JSON at all: cut, or damaged.
    Syntax(String),
    Schema(String),
    Content(String),
}

impl ResultFile {
    /// Reads `path`. Empty lines are skipped.
    ///
    /// # Errors
    /// The file cannot be read, a line is of another schema, or one that is not the last is
    /// damaged.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let io = |error| ReadError::Io { path: path.to_owned(), error };
        Self::read_from(File::open(path).map_err(io)?, path)
    }

    /// Reads results from `input`, called `path` in errors.
    ///
    /// # Errors
    /// As [`ResultFile::read`].
    pub fn read_from(input: impl Read, path: &Path) -> Result<Self, ReadError> {
        Self::read_to_end(input, path).map(|(file, _)| file)
    }

    fn read_to_end(input: impl Read, path: &Path) -> Result<(Self, End), ReadError> {
        let mut input = BufReader::new(input);
        let (mut file, mut end) = (ResultFile::default(), End::default());
        let (mut bytes, mut number, mut offset) = (Vec::new(), 0, 0);
        loop {
            bytes.clear();
            let line = input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes);
            let taken = line.map_err(|error| ReadError::Io { path: path.to_owned(), error })?;
            if taken == 0 {
                return Ok((file, end));
            }
            number += 1;
            offset += taken as u64;
            if let Some(damage) = file.damage.take() {
                return Err(ReadError::Line {
                    path: path.to_owned(),
                    line: damage.line,
                    why: damage.why,
                });
            }
            let fault = if taken as u64 > LINE_BYTES_MAX {
                Err(Fault::Content(format!(
                    "longer than {} MiB: no file of results",
                    LINE_BYTES_MAX >> 20
                )))
            } else {
                file.take(&bytes)
            };
            match fault {
                Ok(()) => end = End { whole_bytes: offset, is_open: bytes.last() != Some(&b'\n') },
                Err(Fault::Syntax(why)) => file.damage = Some(Damage { line: number, why }),
                Err(Fault::Schema(found)) => {
                    return Err(ReadError::Schema { path: path.to_owned(), line: number, found });
                }
                Err(Fault::Content(why)) => {
                    return Err(ReadError::Line { path: path.to_owned(), line: number, why });
                }
            }
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), Fault> {
        let syntax = || Fault::Syntax("not a whole JSON object".to_owned());
        let line = line.trim_ascii();
        if line.is_empty() {
            return Ok(());
        }
        // First any JSON, so that a line that was cut is told from one that is no result.
        let value: serde_json::Value = serde_json::from_slice(line).map_err(|_| syntax())?;
        if !value.is_object() {
            return Err(syntax());
        }
        let content = |e: serde_json::Error| Fault::Content(format!("not a result: {e}"));
        let header = Header::deserialize(&value).map_err(content)?;
        match header.schema {
            Some(schema) if schema == SCHEMA => {}
            Some(other) => return Err(Fault::Schema(other.to_string())),
            None => return Err(Fault::Content("not a result: it has no \"schema\"".to_owned())),
        }
        let name = if let Some(description) = header.description {
            self.experiments.push(Experiment::deserialize(description).map_err(content)?);
            &self.experiments[self.experiments.len() - 1].name
        } else {
            self.records.push(Record::deserialize(value).map_err(content)?);
            &self.records[self.records.len() - 1].experiment
        };
        if Experiment::is_name(name) {
            return Ok(());
        }
        Err(Fault::Content(format!(
            "{name:?} is no name of an experiment: letters, digits, '.', '_' and '-'"
        )))
    }
}

/// Why a result could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    /// What is there cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// By the operating system: no space, most likely. What was written before is whole.
    #[error("cannot write {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A number that JSON has no word for.
    #[error("{experiment} at {point}: {value} is {number}, which a result cannot be")]
    NotFinite {
        /// The experiment.
        experiment: String,
        /// The point.
        point: String,
        /// Name of the value.
        value: String,
        /// What it is.
        number: f64,
    },
    /// A name that cannot be a file's.
    #[error("{0:?} is no name of an experiment: letters, digits, '.', '_' and '-'")]
    Name(String),
    /// A line that no reader would take.
    #[error("{experiment}: a line of {bytes} bytes; at most {LINE_BYTES_MAX} can be read back")]
    TooLong {
        /// The experiment.
        experiment: String,
        /// Length of the line.
        bytes: usize,
    },
}

/// Writes a file of results, line by line.
#[derive(Debug)]
pub struct ResultWriter {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl ResultWriter {
    /// A new file; one that is there is replaced.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Self, WriteError> {
        let file =
            File::create(path).map_err(|error| WriteError::Io { path: path.to_owned(), error })?;
        Ok(ResultWriter { path: path.to_owned(), file, bytes: 0 })
    }

    /// Goes on with a file, or begins it. A last line that was cut is taken away; what is whole is
    /// returned.
    ///
    /// # Errors
    /// The file cannot be read or written, or is damaged before its last line.
    pub fn resume(path: &Path) -> Result<(Self, ResultFile), WriteError> {
        let io = |error| WriteError::Io { path: path.to_owned(), error };
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options.map_err(io)?;
        let (there, end) = ResultFile::read_to_end(&file, path)?;
        file.set_len(end.whole_bytes).map_err(io)?;
        file.seek(SeekFrom::Start(end.whole_bytes)).map_err(io)?;
        let mut writer = ResultWriter { path: path.to_owned(), file, bytes: end.whole_bytes };
        if end.is_open {
            writer.append(b"\n")?;
        }
        Ok((writer, there))
    }

    /// Adds a result.
    ///
    /// # Errors
    /// A value is not finite, the name is none, or the file cannot be written.
    pub fn record(&mut self, record: &Record) -> Result<(), WriteError> {
        check_name(&record.experiment)?;
        let parameters =
            record.point.iter().filter_map(|(key, value)| Some((key, value.as_number()?)));
        let values = record.values.iter().map(|(key, value)| (key.as_str(), *value));
        let samples = record
            .samples
            .iter()
            .flat_map(|(key, samples)| samples.iter().map(|sample| (key.as_str(), *sample)));
        if let Some((value, number)) =
            parameters.chain(values).chain(samples).find(|(_, number)| !number.is_finite())
        {
            return Err(WriteError::NotFinite {
                experiment: record.experiment.clone(),
                point: record.point.to_string(),
                value: value.to_owned(),
                number,
            });
        }
        self.line(&record.experiment, &RecordLine { schema: SCHEMA, record })
    }

    /// Adds the description of an experiment. A later one of the same name replaces it.
    ///
    /// # Errors
    /// The name is none, or the file cannot be written.
    pub fn describe(&mut self, experiment: &Experiment) -> Result<(), WriteError> {
        check_name(&experiment.name)?;
        self.line(&experiment.name, &DescriptionLine { schema: SCHEMA, description: experiment })
    }

    fn line(&mut self, experiment: &str, content: &impl Serialize) -> Result<(), WriteError> {
        let io = |error: serde_json::Error| WriteError::Io {
            path: self.path.clone(),
            error: error.into(),
        };
        let mut line = serde_json::to_vec(content).map_err(io)?;
        line.push(b'\n');
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(WriteError::TooLong {
                experiment: experiment.to_owned(),
                bytes: line.len(),
            });
        }
        self.append(&line)
    }

    fn append(&mut self, line: &[u8]) -> Result<(), WriteError> {
        if let Err(error) = self.file.write_all(line) {
            // Half a line helps nobody; should this fail too, reading skips it.
            let _ = self.file.set_len(self.bytes);
            let _ = self.file.seek(SeekFrom::Start(self.bytes));
            return Err(WriteError::Io { path: self.path.clone(), error });
        }
        self.bytes += line.len() as u64;
        Ok(())
    }
}

fn check_name(name: &str) -> Result<(), WriteError> {
    if Experiment::is_name(name) { Ok(()) } else { Err(WriteError::Name(name.to_owned())) }
}

#[cfg(test)]
mod tests;
