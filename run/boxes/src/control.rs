//! The control socket of a box: its requests, and the clients that make them. Answers are JSON.

use crate::error::{Error, PathError};
use crate::operation::Operated;
use crate::replace::ReplaceError;
use crate::runtime_dir::{RuntimeDirError, private_dir};
use crate::socket;
use crate::status::BoxStatus;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// A box that does not answer within this time is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Turns an error into the message that the client sees.
pub type Phrase = fn(&Error) -> String;

/// Why a box cannot be controlled.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The socket or its directory cannot be accessed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The directory around it cannot be used.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The name is not valid for a box.
    #[error("'{0}' is not a valid name for a box")]
    NoName(String),
    /// The socket's path is taken by another file.
    #[error("{} exists and is not a socket", .0.display())]
    NoSocket(PathBuf),
    /// Another box has this name.
    #[error("a box named '{0}' is already running")]
    RunsAlready(String),
    /// The socket cannot be passed to the control thread.
    #[error("cannot serve the control socket: {0}")]
    Serve(io::Error),
    /// The control thread cannot be started.
    #[error("cannot start the control thread: {0}")]
    Thread(io::Error),
    /// No box has this name, or none runs.
    #[error("no box {}is running here", called(.0.as_deref()))]
    Nobody(Option<String>),
    /// Several boxes match.
    #[error("several boxes are running here: {}", .0.join(", "))]
    Several(Vec<String>),
    /// The box does not answer.
    #[error("the box at {} does not answer: {error}", path.display())]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The box closed the connection without an answer.
    #[error("the box at {} is shutting down or hangs", .0.display())]
    Ending(PathBuf),
    /// The answer is truncated.
    #[error("the answer of the box at {} is truncated", .0.display())]
    Halfway(PathBuf),
    /// The answer cannot be parsed.
    #[error("the box at {} is of another version ({error})", path.display())]
    OtherVersion {
        /// The socket.
        path: PathBuf,
        /// The parser's error.
        error: serde_json::Error,
    },
    /// The box refuses the request, with this reason.
    #[error("{0}")]
    Refused(String),
}

fn called(name: Option<&str>) -> String {
    name.map(|name| format!("called '{name}' ")).unwrap_or_default()
}

/// A client's request. On the socket it is a line of JSON: its name in quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The box's state: a [`BoxStatus`]. An empty line, or none, means the same.
    Status,
    /// Whether the box is ready. The answer to this and the following requests is an [`Outcome`].
    Health,
    /// Reread the configuration.
    Reload,
    /// Start draining.
    Drain,
    /// Stop draining.
    Undrain,
    /// Hand over to this process, which speaks this version. A conversation follows.
    Replace {
        /// Version of the conversation.
        version: u32,
    },
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Actions that were taken.
    pub done: Vec<String>,
    /// The error, if there was one.
    pub error: Option<String>,
}

/// Directory in which services have their runtime directories, with one subdirectory per box.
const OF_SERVICES: &str = "/run/longhaul";

/// Path of a control socket.
#[derive(Clone)]
pub(crate) struct SocketPath {
    box_name: String,
    path: PathBuf,
    /// The directory that belongs to the socket alone.
    own_dir: Option<PathBuf>,
}

impl SocketPath {
    /// Returns the requested path; by default one in the runtime directory that the service manager
    /// created for this box, or in that of this user's boxes.
    pub fn decide(box_name: &str, path: Option<&Path>) -> Result<Self, ControlError> {
        let fits = !box_name.is_empty()
            && box_name.len() <= 40
            && box_name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@".contains(&b))
            && !box_name.starts_with('.');
        if !fits {
            return Err(ControlError::NoName(box_name.to_string()));
        }
        let box_name = box_name.to_string();
        if let Some(path) = path {
            return Ok(SocketPath { box_name, path: path.to_owned(), own_dir: None });
        }
        // A service may have several; the first one is used.
        let of_service = std::env::var_os("RUNTIME_DIRECTORY");
        let of_service = of_service.and_then(|dirs| std::env::split_paths(&dirs).next());
        let dir = match of_service {
            Some(dir) => dir,
            None => private_dir("boxes")?,
        };
        Ok(SocketPath::below(&dir, box_name))
    }

    fn below(dir: &Path, box_name: String) -> Self {
        let own_dir = dir.join(&box_name);
        SocketPath { box_name, path: own_dir.join("control"), own_dir: Some(own_dir) }
    }

    /// Connects to the running box.
    pub(crate) fn connect(&self) -> Result<UnixStream, ReplaceError> {
        UnixStream::connect(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                let (name, path) = (self.box_name.clone(), self.path.clone());
                ReplaceError::NoPredecessor { name, path }
            }
            _ => does_not_answer(&self.path, error).into(),
        })
    }

    /// Removes the socket of a killed box; refuses to remove any other file.
    fn clear(&self) -> Result<(), ControlError> {
        let path = &self.path;
        match fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(PathError::new("look at", path, e).into()),
            Ok(found) if found.file_type().is_socket() => {}
            Ok(_) => return Err(ControlError::NoSocket(path.clone())),
        }
        match UnixStream::connect(path) {
            Ok(_) => Err(ControlError::RunsAlready(self.box_name.clone())),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|e| PathError::new("remove", path, e).into())
            }
            Err(e) => Err(PathError::new("replace", path, e).into()),
        }
    }
}

/// The box's end of the socket. Dropping it removes the socket, if permitted.
pub(crate) struct Control {
    listener: UnixListener,
    socket_path: SocketPath,
    /// Another process serves it, and removes it.
    is_given_away: bool,
}

impl Control {
    /// Binds and listens. Removes the stale socket of a killed box.
    pub fn listen(socket_path: SocketPath) -> Result<Self, ControlError> {
        let path = &socket_path.path;
        socket_path.clear()?;
        if let Some(dir) = &socket_path.own_dir {
            fs::create_dir_all(dir).map_err(|e| PathError::new("create", dir, e))?;
        }
        let listener =
            UnixListener::bind(path).map_err(|e| PathError::new("listen at", path, e))?;
        Ok(Control { listener, socket_path, is_given_away: false })
    }

    /// The socket of a box that this process replaces: it stays that box's until [`Control::keep`].
    pub fn inherited(listener: UnixListener, socket_path: &SocketPath) -> Self {
        Control { listener, socket_path: socket_path.clone(), is_given_away: true }
    }

    /// The socket, for another process.
    pub fn duplicate(&self) -> Result<UnixListener, ControlError> {
        self.listener.try_clone().map_err(ControlError::Serve)
    }

    /// The other process has ended.
    pub fn keep(&mut self) {
        self.is_given_away = false;
    }

    /// Leaves the socket to another process.
    pub fn give_away(mut self) {
        self.is_given_away = true;
    }

    /// Starts the control thread, which runs as long as the process and turns errors into messages
    /// by `phrase`. `replace` gets the connections of successors, with their versions.
    pub fn serve(
        &self,
        of: Arc<dyn Operated>,
        phrase: Phrase,
        replace: impl Fn(UnixStream, u32) + Send + 'static,
    ) -> Result<(), ControlError> {
        let listener = self.duplicate()?;
        let respond = move |line: &[u8], stream| match read_request(line) {
            Some(Request::Replace { version }) => {
                replace(stream, version);
                Ok(())
            }
            _ => socket::reply(stream, answer(line, &*of, phrase)),
        };
        socket::serve_all(vec![listener], respond).map_err(ControlError::Thread)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.is_given_away {
            return;
        }
        // Fails if privileges were dropped. Clients then find a socket without a listener.
        let _ = fs::remove_file(&self.socket_path.path);
        let _ = self.socket_path.own_dir.as_ref().map(fs::remove_dir);
    }
}

fn answer(line: &[u8], of: &dyn Operated, phrase: Phrase) -> Option<Vec<u8>> {
    let outcome = |done: Result<Vec<String>, Error>| match done {
        Ok(done) => Outcome { done, error: None },
        Err(error) => Outcome { done: vec![], error: Some(phrase(&error)) },
    };
    let outcome = match read_request(line) {
        Some(Request::Status) => return serde_json::to_vec(&of.status()?).ok(),
        Some(Request::Health) => {
            let reasons = of.not_ready();
            let error = (!reasons.is_empty()).then(|| reasons.join("; "));
            Outcome { done: of.notes(), error }
        }
        Some(Request::Reload) => outcome(of.reload()),
        Some(Request::Drain) => outcome(of.set_draining(true).map(|()| vec![])),
        Some(Request::Undrain) => outcome(of.set_draining(false).map(|()| vec![])),
        Some(Request::Replace { .. }) | None => {
            let error = "it does not know this request: this longhaul is of another version";
            Outcome { done: vec![], error: Some(error.to_string()) }
        }
    };
    serde_json::to_vec(&outcome).ok()
}

/// Parses a client's request; `None` if it is not one.
fn read_request(line: &[u8]) -> Option<Request> {
    if line.is_empty() { Some(Request::Status) } else { serde_json::from_slice(line).ok() }
}

/// The result of asking one box.
#[derive(Debug)]
pub struct Asked {
    /// Name by which the box was found.
    pub name: String,
    /// The box's state, or the error.
    pub state: Result<BoxStatus, ControlError>,
}

/// Asks the box with this name, the one at this socket, or all that are found.
///
/// # Errors
/// If there is none, or the named box does not answer. When all are asked, a box's failure is part
/// of the result.
pub fn ask(name: Option<&str>, control: Option<&Path>) -> Result<Vec<Asked>, ControlError> {
    if let Some(path) = control {
        let state = Reached(path.to_owned()).status()?;
        return Ok(vec![Asked { name: state.name.clone(), state: Ok(state) }]);
    }
    let mut asked = ask_each(&found(name)?);
    if asked.is_empty() {
        return Err(nobody(name));
    }
    if name.is_some()
        && let Some(failed) = asked.iter().position(|one| one.state.is_err())
        && let Err(error) = asked.swap_remove(failed).state
    {
        return Err(error);
    }
    Ok(asked)
}

/// Directories of the boxes with this name, or of all boxes.
fn found(name: Option<&str>) -> Result<Vec<PathBuf>, ControlError> {
    let services = within(Path::new(OF_SERVICES));
    let mut found: Vec<PathBuf> = services.iter().flat_map(|service| within(service)).collect();
    found.extend(within(&private_dir("boxes")?));
    found.retain(|dir| name.is_none_or(|name| dir.file_name().is_some_and(|found| found == name)));
    found.sort();
    Ok(found)
}

fn nobody(name: Option<&str>) -> ControlError {
    ControlError::Nobody(name.map(str::to_string))
}

/// The control socket of one box.
#[derive(Debug)]
pub struct Reached(PathBuf);

impl Reached {
    /// The box with this name, the one at this socket, or the only one that runs here.
    ///
    /// # Errors
    /// If no box matches, or several do.
    pub fn find(name: Option<&str>, control: Option<&Path>) -> Result<Self, ControlError> {
        if let Some(path) = control {
            return Ok(Reached(path.to_owned()));
        }
        let mut found = found(name)?;
        found.retain(|dir| UnixStream::connect(dir.join("control")).is_ok());
        match &found[..] {
            [] => Err(nobody(name)),
            [one] => Ok(Reached(one.join("control"))),
            several => {
                let names = several.iter().filter_map(|dir| dir.file_name());
                let names = names.map(|name| name.to_string_lossy().into_owned());
                Err(ControlError::Several(names.collect()))
            }
        }
    }

    fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T, ControlError> {
        let stream = UnixStream::connect(&self.0).map_err(|e| does_not_answer(&self.0, e))?;
        collect(&self.0, stream, request)
    }

    /// Requests the box's state.
    ///
    /// # Errors
    /// If the box does not answer.
    pub fn status(&self) -> Result<BoxStatus, ControlError> {
        self.ask(Request::Status)
    }

    /// Sends a request, and returns the actions that the box took.
    ///
    /// # Errors
    /// If the box does not answer, or refuses.
    pub fn order(&self, request: Request) -> Result<Vec<String>, ControlError> {
        let Outcome { done, error } = self.ask(request)?;
        error.map_or(Ok(done), |error| Err(ControlError::Refused(error)))
    }
}

/// Entries of a directory; none if it is not a directory.
fn within(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Asks the boxes with these directories. Directories that killed boxes left are skipped.
fn ask_each(dirs: &[PathBuf]) -> Vec<Asked> {
    let one = |dir: &PathBuf| {
        let path = dir.join("control");
        let stream = UnixStream::connect(&path).ok()?;
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Some(Asked { name, state: collect(&path, stream, Request::Status) })
    };
    dirs.iter().filter_map(one).collect()
}

fn does_not_answer(path: &Path, error: io::Error) -> ControlError {
    ControlError::NoAnswer { path: path.to_owned(), error }
}

fn collect<T: DeserializeOwned>(
    path: &Path,
    stream: UnixStream,
    request: Request,
) -> Result<T, ControlError> {
    let line = serde_json::to_vec(&request).unwrap_or_default();
    let answer = socket::ask(stream, &line, ANSWER_WITHIN).map_err(|e| does_not_answer(path, e))?;
    if answer.is_empty() {
        return Err(ControlError::Ending(path.to_owned()));
    }
    serde_json::from_str(&answer).map_err(|error| match error.is_eof() {
        true => ControlError::Halfway(path.to_owned()),
        false => ControlError::OtherVersion { path: path.to_owned(), error },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::thread;

    /// A temporary directory of one test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("longhaul-{test}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            Scratch(dir)
        }

        fn socket_path(&self, box_name: &str) -> SocketPath {
            SocketPath::below(&self.0, box_name.to_string())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn at(path: &Path) -> Result<Control, ControlError> {
        Control::listen(SocketPath::decide("west", Some(path)).unwrap())
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let scratch = Scratch::new("replaced");
        let path = scratch.0.join("here");
        fs::write(&path, "dear").unwrap();
        let refusal = at(&path).err().unwrap().to_string();
        assert!(refusal.contains("exists and is not a socket"), "{refusal}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear");
        let link = scratch.0.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(at(&link).is_err() && link.is_symlink());
        fs::remove_file(&path).unwrap();

        let alive = UnixListener::bind(&path).unwrap();
        let refusal = at(&path).err().unwrap().to_string();
        assert!(refusal.contains("a box named 'west' is already running"), "{refusal}");
        drop(alive);
        assert!(path.exists());
        drop(at(&path).unwrap());
        assert!(!path.exists(), "it goes with the box");
    }

    #[test]
    fn boxes_in_one_directory_have_a_socket_each() {
        let scratch = Scratch::new("each");
        let boxes =
            ["west", "east"].map(|name| Control::listen(scratch.socket_path(name)).unwrap());
        assert_eq!(boxes[0].socket_path.path, scratch.0.join("west/control"));
        drop(boxes);
        assert!(within(&scratch.0).is_empty(), "something stays behind");
    }

    #[test]
    fn a_box_that_fails_leaves_the_others_their_answers() {
        let scratch = Scratch::new("others");
        let state = BoxStatus { name: "good".to_string(), ..BoxStatus::default() };
        let says = [
            ("ending", String::new()),
            ("good", serde_json::to_string(&state).unwrap()),
            ("old", "{}".to_string()),
        ];
        let serving = says.map(|(name, says)| {
            let control = Control::listen(scratch.socket_path(name)).unwrap();
            thread::spawn(move || {
                let mut stream = control.listener.accept().unwrap().0;
                let line = socket::read_line(&stream, Duration::from_secs(20)).unwrap();
                assert_eq!(read_request(&line), Some(Request::Status));
                stream.write_all(says.as_bytes()).unwrap()
            })
        });
        let left_behind = scratch.0.join("killed");
        fs::create_dir(&left_behind).unwrap();
        drop(UnixListener::bind(left_behind.join("control")).unwrap());
        let dirs = ["ending", "good", "killed", "old"].map(|name| scratch.0.join(name));
        let answers = ask_each(&dirs);
        serving.into_iter().for_each(|one| one.join().unwrap());
        let [ending, good, old] = &answers[..] else { panic!("{answers:?}") };
        assert!(matches!(&ending.state, Err(ControlError::Ending(_))), "{ending:?}");
        assert_eq!((&*ending.name, &*good.state.as_ref().unwrap().name), ("ending", "good"));
        assert!(matches!(&old.state, Err(ControlError::OtherVersion { .. })), "{old:?}");
        assert_eq!(old.name, "old");
    }

    /// A box that obeys every request.
    struct Obedient;

    impl Operated for Obedient {
        fn status(&self) -> Option<BoxStatus> {
            None
        }

        fn not_ready(&self) -> Vec<String> {
            vec!["one".to_string(), "two".to_string()]
        }

        fn stuck(&self) -> Vec<String> {
            vec![]
        }

        fn reload(&self) -> Result<Vec<String>, Error> {
            Ok(vec!["pair x: mode".to_string()])
        }

        fn set_draining(&self, draining: bool) -> Result<(), Error> {
            if draining { Err(Error::NoFlows("x".to_string())) } else { Ok(()) }
        }
    }

    fn outcome_of(line: &[u8]) -> Outcome {
        let (served, mut client) = UnixStream::pair().unwrap();
        client.write_all(line).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let phrase = |error: &Error| format!("{error}; do not");
        let respond =
            |line: &[u8], stream| socket::reply(stream, super::answer(line, &Obedient, phrase));
        socket::serve_one(served, respond).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn a_line_says_what_is_wanted_and_anything_else_is_told_so() {
        let done = |done: &[&str]| done.iter().map(|text| (*text).to_string()).collect::<Vec<_>>();
        let error = |text: &str| Outcome { done: vec![], error: Some(text.to_string()) };
        assert_eq!(
            outcome_of(b"\"reload\"\n"),
            Outcome { done: done(&["pair x: mode"]), error: None }
        );
        assert_eq!(outcome_of(b"\"drain\"\n"), error("'x' has no flows to drain; do not"));
        assert_eq!(outcome_of(b"\"undrain\""), Outcome::default());
        assert_eq!(outcome_of(b"\"health\"\n"), error("one; two"));
        for line in [&b"\"fly\"\n"[..], b"{\n", &[0xff; 64], &[b'['; 64]] {
            assert!(outcome_of(line).error.is_some_and(|error| error.contains("does not know")));
        }
    }
}
