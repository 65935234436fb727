//! Replacing a running box by a process in the background.

use crate::problem::Problem;
use longhaul_boxes::control;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// The option that the process in the background does not get.
const DETACH: &str = "--detach";

/// Interval at which the new box is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Starts this program again, and returns once it runs in the place of the running box, whose
/// control socket is at `control`, or has ended.
///
/// # Errors
/// If it cannot be started.
pub fn replace(control: Option<&Path>) -> Result<ExitCode, Problem> {
    let started = std::env::current_exe().and_then(|program| {
        let arguments = std::env::args_os().skip(1).filter(|argument| argument != DETACH);
        Command::new(program).args(arguments).stdin(Stdio::null()).spawn()
    });
    let cannot =
        |error| Problem::plain(format!("cannot start a process in the background: {error}"));
    let mut child = started.map_err(cannot)?;
    loop {
        // It has said why.
        if child.try_wait().map_err(cannot)?.is_some() {
            return Ok(ExitCode::FAILURE);
        }
        let boxes = control::ask(None, control).unwrap_or_default();
        if boxes.iter().any(|asked| asked.state.as_ref().is_ok_and(|it| it.pid == child.id())) {
            return Ok(ExitCode::SUCCESS);
        }
        sleep(LOOK_AGAIN);
    }
}
