//! A flame graph of the measurement, recorded by perf.

use crate::problem::Problem;
use inferno::collapse::Collapse as _;
use inferno::collapse::perf::Folder;
use inferno::flamegraph::{self, Options};
use longhaul_measure::start_unpinned;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = "perf";
/// Samples per second: not a multiple of periodic activity.
const FREQUENCY: &str = "499";
/// Minimum width of a frame.
const LEAST_PERCENT: f64 = 0.1;

/// A perf process that records this one.
pub struct Profile {
    recorder: Option<Child>,
    data: PathBuf,
    graph: PathBuf,
}

impl Profile {
    /// Checks whether perf can record.
    pub fn check(graph: &Path) -> Result<Self, Problem> {
        let found = Command::new(PROGRAM)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            let cure = "on Debian: apt-get install linux-perf";
            return Err(Problem::new(format!("--flamegraph: {PROGRAM} is not installed"), cure));
        }
        File::create(graph).map_err(|e| Problem::io("make", graph, &e))?;
        let data = std::env::temp_dir().join(format!("longhaul-bench-{}.perf", std::process::id()));
        Ok(Profile { recorder: None, data, graph: graph.to_owned() })
    }

    /// Starts to record this process and its children.
    pub fn start(mut self) -> Result<Self, Problem> {
        let mut command = Command::new(PROGRAM);
        // Without frame pointers, stacks are unwound from copies of their bytes.
        command.args([
            "record",
            "-q",
            "-F",
            FREQUENCY,
            "--call-graph",
            "dwarf,16384",
            "-e",
            "cpu-clock:u",
        ]);
        command.args(["-p", &std::process::id().to_string(), "-o"]).arg(&self.data);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let recorder = start_unpinned(&mut command);
        self.recorder =
            Some(recorder.map_err(|e| Problem::plain(format!("cannot start {PROGRAM}: {e}")))?);
        Ok(self)
    }

    /// Stops recording, and draws the graph.
    pub fn finish(mut self) -> Result<(), Problem> {
        let Some(mut recorder) = self.recorder.take() else { return Ok(()) };
        let pid = rustix::process::Pid::from_child(&recorder);
        let failed = |why: String| {
            Problem::new(
                format!("no flame graph: {why}"),
                "see 'sysctl kernel.perf_event_paranoid'",
            )
        };
        rustix::process::kill_process(pid, rustix::process::Signal::INT)
            .map_err(|e| failed(e.to_string()))?;
        recorder.wait().map_err(|e| failed(e.to_string()))?;
        let mut script = Command::new(PROGRAM);
        script.args(["script", "--no-inline", "-i"]).arg(&self.data);
        let script = script.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut script = script.map_err(|e| failed(e.to_string()))?;
        let mut stacks = Vec::new();
        if let Some(stdout) = script.stdout.take() {
            let folded = Folder::default().collapse(BufReader::new(stdout), &mut stacks);
            folded.map_err(|e| failed(e.to_string()))?;
        }
        let ended = script.wait().map_err(|e| failed(e.to_string()))?;
        if stacks.is_empty() {
            return Err(failed(format!("{PROGRAM} recorded nothing ({ended})")));
        }
        self.draw(&stacks).map_err(|e| Problem::io("write", &self.graph, &e))
    }

    fn draw(&self, stacks: &[u8]) -> io::Result<()> {
        let mut options = Options::default();
        "longhaul bench".clone_into(&mut options.title);
        options.min_width = LEAST_PERCENT;
        let mut graph = BufWriter::new(File::create(&self.graph)?);
        flamegraph::from_reader(&mut options, stacks, &mut graph)?;
        graph.flush()
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            // It may already have ended.
            let _ = recorder.kill();
            let _ = recorder.wait();
        }
        let _ = std::fs::remove_file(&self.data);
    }
}
