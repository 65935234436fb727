//! The control socket: `status` answers with JSON, `down` ends the lab.

use super::dir::LabDir;
use super::status::LabStatus;
use crate::problem::Problem;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// What a user asks of a running lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Status,
    Down,
}

/// A lab that does not answer for this long is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The daemon's end of the socket; never blocks for longer than a slow client's line takes.
pub struct Control {
    listener: UnixListener,
}

impl Control {
    /// Listens at the lab's control socket; the lab's lock says that nobody else does.
    pub fn listen(dir: &LabDir) -> Result<Self, Problem> {
        let path = dir.control_socket();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Problem::io("remove", &path, &e)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(|e| Problem::io("listen at", &path, &e))?;
        listener.set_nonblocking(true).map_err(|e| Problem::io("listen at", &path, &e))?;
        Ok(Control { listener })
    }

    /// Serves whoever has connected. True when the lab is to end.
    pub fn serve(&self, mut status: impl FnMut() -> String) -> bool {
        let mut down = false;
        while let Ok((stream, _)) = self.listener.accept() {
            // A client that goes away early is its own concern.
            down |= serve_one(stream, &mut status).unwrap_or(false);
        }
        down
    }
}

fn serve_one(mut stream: UnixStream, status: &mut impl FnMut() -> String) -> io::Result<bool> {
    const PATIENCE: Duration = Duration::from_millis(100);
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(64)).read_line(&mut line)?;
    match line.trim() {
        "status" => stream.write_all(status().as_bytes()).map(|()| false),
        "down" => stream.write_all(b"bye\n").map(|()| true),
        _ => stream.write_all(b"unknown request\n").map(|()| false),
    }
}

fn ask(dir: &LabDir, request: Request) -> Result<String, Problem> {
    if !dir.is_up() {
        return Err(dir.not_up());
    }
    let path = dir.control_socket();
    let stuck = |e: io::Error| {
        Problem::new(
            format!("the lab '{}' does not answer ({e})", dir.name()),
            format!("see {}", dir.log().display()),
        )
    };
    let mut stream = UnixStream::connect(&path).map_err(stuck)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(stuck)?;
    let line: &[u8] = match request {
        Request::Status => b"status\n",
        Request::Down => b"down\n",
    };
    stream.write_all(line).map_err(stuck)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(stuck)?;
    Ok(answer)
}

/// The state of a running lab.
pub fn ask_status(dir: &LabDir) -> Result<LabStatus, Problem> {
    let answer = ask(dir, Request::Status)?;
    serde_json::from_str(&answer).map_err(|e| {
        Problem::new(format!("the lab '{}' is of another version ({e})", dir.name()), "restart it")
    })
}

/// Ends a running lab and waits until it is gone.
pub fn ask_down(dir: &LabDir) -> Result<(), Problem> {
    ask(dir, Request::Down)?;
    let deadline = Instant::now() + ANSWER_WITHIN;
    while dir.is_up() {
        if Instant::now() > deadline {
            return Err(Problem::plain(format!(
                "the lab '{}' does not end; see {}",
                dir.name(),
                dir.log().display()
            )));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
