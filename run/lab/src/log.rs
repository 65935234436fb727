//! The daemon's log of errors.

use crate::dir::LabDir;
use crate::error::Error;
use longhaul_boxes::PathError;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum lines per daemon, so that a recurring error cannot fill the disk.
const LINES_MAX: u32 = 1000;

/// An open log; clones write to the same one.
#[derive(Clone)]
pub struct Log {
    file: Arc<File>,
    lines: Arc<AtomicU32>,
    stderr: Stderr,
}

/// Destination of a daemon's standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stderr {
    /// Unchanged; the log's lines go there too.
    AsItIs,
    /// The log, once it is open, so that it contains panics.
    ToLog,
}

impl Log {
    /// Opens the log of the lab in `dir` for appending.
    pub fn open(dir: &LabDir, stderr: Stderr) -> Result<Self, Error> {
        let path = dir.log();
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = Arc::new(file.map_err(|e| PathError::new("open", &path, e))?);
        if stderr == Stderr::ToLog {
            rustix::stdio::dup2_stderr(&file).map_err(|e| Error::Stderr(e.into()))?;
        }
        Ok(Log { file, lines: Arc::default(), stderr })
    }

    /// Adds a line.
    pub fn line(&self, line: &str) {
        let before = self.lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (n <= LINES_MAX).then_some(n + 1)
        });
        let text = match before {
            Ok(LINES_MAX) => "further lines are left out\n".to_string(),
            Ok(_) => format!("{line}\n"),
            Err(_) => return,
        };
        // A log that cannot be written must not stop the lab.
        let _ = (&*self.file).write_all(text.as_bytes());
        if self.stderr == Stderr::AsItIs {
            let _ = write!(io::stderr(), "longhaul: {text}");
        }
    }
}

/// A recording's file. Its first write error is logged and ends the recording.
pub struct Recording {
    file: File,
    path: String,
    log: Log,
}

impl Recording {
    /// Creates `path`, replacing any previous file.
    pub fn create(path: &std::path::Path, log: Log) -> io::Result<Self> {
        Ok(Recording { file: File::create(path)?, path: path.display().to_string(), log })
    }
}

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes);
        if let Err(error) = &written
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.log.line(&format!("the recording to {} ends: {error}", self.path));
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_at(path: &std::path::Path) -> Log {
        let file = Arc::new(File::create(path).unwrap());
        Log { file, lines: Arc::default(), stderr: Stderr::ToLog }
    }

    #[test]
    fn a_fault_that_keeps_coming_back_does_not_fill_the_disk() {
        let path = std::env::temp_dir().join(format!("longhaul-log-{}", std::process::id()));
        let log = log_at(&path);
        for _ in 0..3 * LINES_MAX {
            log.line("again");
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().filter(|line| *line == "again").count(), LINES_MAX as usize);
        assert_eq!(text.lines().last(), Some("further lines are left out"));
    }

    #[test]
    fn a_recording_that_breaks_off_is_logged() {
        let path =
            std::env::temp_dir().join(format!("longhaul-recording-log-{}", std::process::id()));
        let log = log_at(&path);
        let mut recording = Recording::create(std::path::Path::new("/dev/full"), log).unwrap();
        assert!(recording.write_all(b"frames").is_err());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.starts_with("the recording to /dev/full ends: No space left"), "{text}");
    }
}
