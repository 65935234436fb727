//! The control socket: `status` answers with JSON, `down` ends the lab.

use crate::dir::{LabDir, last_words};
use crate::error::Error;
use crate::status::LabStatus;
use longhaul_boxes::{PathError, socket};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// A request to a running lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Status,
    Down,
}

/// A lab that does not answer within this time is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Interval between attempts of a client whose connection the lab closed before the request
/// arrived.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The daemon's end of the socket.
pub(crate) struct Control {
    listener: UnixListener,
}

impl Control {
    /// Binds and listens at the lab's control socket. The lab's lock guarantees that nobody else
    /// does.
    pub fn listen(dir: &LabDir) -> Result<Self, Error> {
        let path = dir.control_socket();
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(PathError::new("remove", &path, e).into());
            }
            _ => {}
        }
        let listener =
            UnixListener::bind(&path).map_err(|e| PathError::new("listen at", &path, e))?;
        Ok(Control { listener })
    }

    /// Starts the control thread, which runs as long as the process. `status` returns the lab's
    /// state, or `None` once it has stopped; `stop` asks it to end, without waiting.
    pub fn serve(
        self,
        status: impl Fn() -> Option<LabStatus> + Send + 'static,
        stop: impl Fn() + Send + 'static,
    ) -> Result<(), Error> {
        let answer = move |line: &[u8]| match line {
            b"status" => serde_json::to_vec(&status()?).ok(),
            b"down" => {
                stop();
                Some(b"bye\n".to_vec())
            }
            _ => Some(b"unknown request\n".to_vec()),
        };
        socket::serve(self.listener, answer).map_err(Error::ControlThread)
    }
}

fn ask(dir: &LabDir, request: Request) -> Result<String, Error> {
    if !dir.is_up() {
        return Err(dir.not_up());
    }
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        match ask_once(&dir.control_socket(), request) {
            Ok(answer) if !answer.is_empty() => return Ok(answer),
            // The lab closed the connection: on a busy machine its time limit may expire before
            // this process is scheduled.
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

fn ask_once(path: &Path, request: Request) -> io::Result<String> {
    let line: &[u8] = match request {
        Request::Status => b"status",
        Request::Down => b"down",
    };
    socket::ask(UnixStream::connect(path)?, line, ANSWER_WITHIN)
}

fn no_answer(dir: &LabDir, why: &str) -> Error {
    Error::NoAnswer { lab: dir.name().clone(), log: dir.log(), why: why.to_string() }
}

/// Requests the state of a running lab.
///
/// # Errors
/// If the lab is not up, or does not answer.
pub fn ask_status(dir: &LabDir) -> Result<LabStatus, Error> {
    let answer = ask(dir, Request::Status)?;
    serde_json::from_str(&answer).map_err(|e| {
        if e.is_eof() {
            return no_answer(dir, "its answer is truncated");
        }
        Error::OtherVersion { lab: dir.name().clone(), error: e }
    })
}

/// Ends a running lab, and waits until it is gone. Returns the last lines of its log, which is
/// deleted with it.
///
/// # Errors
/// If the lab is not up, does not answer, or does not end.
pub fn ask_down(dir: &LabDir) -> Result<Option<String>, Error> {
    let log = dir.open_log();
    ask(dir, Request::Down)?;
    let deadline = Instant::now() + ANSWER_WITHIN;
    while dir.is_up() {
        if Instant::now() > deadline {
            return Err(Error::DoesNotEnd { lab: dir.name().clone(), log: dir.log() });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(log.and_then(last_words))
}
