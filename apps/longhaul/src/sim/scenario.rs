//! A scenario file, with changes from the command line.

use super::Failure;
use crate::problem::Problem;
use longhaul_sim::file::{Loaded, Parameter, ScenarioFile};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A parsed scenario file, with its changes.
pub struct Opened {
    /// The file.
    pub file: ScenarioFile,
    /// Its text.
    pub text: String,
    /// Name in results: the experiment's, or the file's.
    pub experiment: String,
    /// Parameters set, in order.
    pub parameters: Vec<Parameter>,
    directory: PathBuf,
    /// Text of the files to which it refers, by name.
    read: Mutex<BTreeMap<String, String>>,
}

/// Maximum length of a scenario file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Reads a scenario file and changes it by each `KEY=VALUE`.
pub fn open(path: &Path, settings: &[String]) -> Result<Opened, Failure> {
    let io = |e| Failure::Value(Problem::io("read", path, &e));
    let length = std::fs::metadata(path).map_err(io)?.len();
    if length > FILE_BYTES_MAX {
        return Err(Failure::value(format!(
            "{} has {length} bytes: not a scenario file",
            path.display()
        )));
    }
    let text = std::fs::read_to_string(path).map_err(io)?;
    let file = ScenarioFile::parse(&path.display().to_string(), &text).map_err(Failure::value)?;
    let stem =
        path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let experiment = name(file.name().unwrap_or(&stem));
    let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
    let mut opened = Opened {
        file,
        text,
        experiment,
        parameters: Vec::new(),
        directory,
        read: Mutex::default(),
    };
    for setting in settings {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Failure::value(format!(
                "--set {setting}: write KEY=VALUE, as in flow.size=64K"
            )));
        };
        opened.set(key.trim(), value.trim())?;
    }
    Ok(opened)
}

/// Reduces a text to a valid name in result files: letters, digits, `.`, `_` and `-`.
fn name(text: &str) -> String {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = text.chars().take(100).map(|c| if is_fit(c) { c } else { '-' }).collect();
    if name.is_empty() { "scenario".to_owned() } else { name }
}

impl Opened {
    /// Changes a key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        let parameter = self.file.set(key, value).map_err(Failure::value)?;
        self.parameters.retain(|known| known.key != parameter.key);
        self.parameters.push(parameter);
        Ok(())
    }

    /// Sets the seed, which results store separately.
    pub fn seed(&mut self, seed: u64) -> Result<(), Failure> {
        self.file.set("seed", &seed.to_string()).map(drop).map_err(Failure::value)
    }

    /// Builds the scenario.
    pub fn load(&self) -> Result<Loaded, Failure> {
        self.load_file(&self.file).map_err(Failure::value)
    }

    /// Builds the scenario of `file`, a copy of this one with more changes. NIC profile files are
    /// relative to it.
    pub fn load_file(&self, file: &ScenarioFile) -> Result<Loaded, longhaul_sim::file::FileError> {
        file.load(&mut |name| {
            let mut read = self.read();
            if let Some(text) = read.get(name) {
                return Ok(text.clone());
            }
            let text =
                std::fs::read_to_string(self.directory.join(name)).map_err(|e| e.to_string())?;
            read.insert(name.to_owned(), text.clone());
            Ok(text)
        })
    }

    /// Files read for it so far: name and text.
    pub fn files(&self) -> Vec<(String, String)> {
        self.read().iter().map(|(name, text)| (name.clone(), text.clone())).collect()
    }

    fn read(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
