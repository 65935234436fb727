//! The control socket: `status` answers with JSON, `down` ends the lab.
//!
//! It is served on a thread of its own, one client after the other: a client that dawdles keeps
//! other clients waiting, and no frame.

use super::dir::LabDir;
use super::status::LabStatus;
use crate::problem::Problem;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a user asks of a running lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Status,
    Down,
}

/// A lab that does not answer for this long is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// From one question to the next, of a client that was too slow to ask.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What the control thread asks of the lab.
pub trait Lab {
    /// Its state; `None` once it has stopped.
    fn status(&self) -> Option<LabStatus>;

    /// Has it end, and does not wait for that.
    fn stop(&self);
}

/// The daemon's end of the socket.
pub struct Control {
    listener: UnixListener,
}

impl Control {
    /// Listens at the lab's control socket; the lab's lock says that nobody else does.
    pub fn listen(dir: &LabDir) -> Result<Self, Problem> {
        let path = dir.control_socket();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Problem::io("remove", &path, &e));
            }
            _ => {}
        }
        let listener =
            UnixListener::bind(&path).map_err(|e| Problem::io("listen at", &path, &e))?;
        Ok(Control { listener })
    }

    /// Starts the control thread, which lives as long as the process.
    pub fn serve(self, lab: impl Lab + Send + 'static) -> Result<(), Problem> {
        let serve = move || {
            for stream in self.listener.incoming() {
                match stream {
                    // A client that goes away early is its own concern.
                    Ok(stream) => drop(serve_one(stream, &lab)),
                    // Out of descriptors, say; not to be met again at full speed.
                    Err(_) => std::thread::sleep(ASK_AGAIN),
                }
            }
        };
        match std::thread::Builder::new().name("control".to_string()).spawn(serve) {
            Ok(_) => Ok(()),
            Err(e) => Err(Problem::plain(format!("cannot start the control thread: {e}"))),
        }
    }
}

/// How long a client may keep the others waiting at each step.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

fn serve_one(mut stream: UnixStream, lab: &impl Lab) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(64)).read_line(&mut line)?;
    match line.trim() {
        "status" => match lab.status() {
            Some(status) => stream.write_all(&serde_json::to_vec(&status)?),
            None => Ok(()),
        },
        "down" => {
            lab.stop();
            stream.write_all(b"bye\n")
        }
        _ => stream.write_all(b"unknown request\n"),
    }
}

fn ask(dir: &LabDir, request: Request) -> Result<String, Problem> {
    if !dir.is_up() {
        return Err(dir.not_up());
    }
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        match ask_once(&dir.control_socket(), request) {
            Ok(answer) if !answer.is_empty() => return Ok(answer),
            // The lab has hung up: on a busy machine its patience with us may be shorter than our
            // turn takes.
            Err(e) if !is_hung_up(&e) => return Err(no_answer(dir, &e.to_string())),
            _ if request == Request::Down && !dir.is_up() => return Ok(String::new()),
            ended if Instant::now() > deadline || !dir.is_up() => {
                return match ended {
                    Ok(answer) => Ok(answer),
                    Err(e) => Err(no_answer(dir, &e.to_string())),
                };
            }
            _ => std::thread::sleep(ASK_AGAIN),
        }
    }
}

fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn ask_once(socket: &Path, request: Request) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let line: &[u8] = match request {
        Request::Status => b"status\n",
        Request::Down => b"down\n",
    };
    stream.write_all(line)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn no_answer(dir: &LabDir, why: &str) -> Problem {
    Problem::new(
        format!("the lab '{}' does not answer ({why})", dir.name()),
        format!("see {}", dir.log().display()),
    )
}

/// The state of a running lab.
pub fn ask_status(dir: &LabDir) -> Result<LabStatus, Problem> {
    let answer = ask(dir, Request::Status)?;
    serde_json::from_str(&answer).map_err(|e| {
        if e.is_eof() {
            return no_answer(dir, "its answer breaks off");
        }
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
