//! The control socket of a box: what can be asked there, and who asks. Answers are JSON.

use crate::error::{Error, PathError};
use crate::operation::Operated;
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

/// A box that does not answer for this long is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Puts what went wrong into words, for whoever asked.
pub type Phrase = fn(&Error) -> String;

/// Why a box cannot be controlled.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The socket or its directory cannot be had.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The directory around it cannot be used.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// A box cannot be called so.
    #[error("'{0}' is no name for a box")]
    NoName(String),
    /// Something else stands where the socket is to be.
    #[error("{} is there and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// Another box has the name.
    #[error("a box called '{0}' runs already")]
    RunsAlready(String),
    /// The socket cannot be shared with the thread that answers.
    #[error("cannot serve the control socket: {0}")]
    Serve(io::Error),
    /// That thread cannot be started.
    #[error("cannot start the control thread: {0}")]
    Thread(io::Error),
    /// There is no box of this name, or none at all.
    #[error("no box {}runs here", called(.0.as_deref()))]
    Nobody(Option<String>),
    /// There is more than one to choose from.
    #[error("several boxes run here: {}", .0.join(", "))]
    Several(Vec<String>),
    /// The box does not answer.
    #[error("the box at {} does not answer: {error}", path.display())]
    NoAnswer {
        /// Its socket.
        path: PathBuf,
        /// What the system answers.
        error: io::Error,
    },
    /// The box hung up without an answer.
    #[error("the box at {} is ending, or hangs", .0.display())]
    Ending(PathBuf),
    /// Its answer breaks off.
    #[error("the box at {} stopped halfway", .0.display())]
    Halfway(PathBuf),
    /// Its answer cannot be understood.
    #[error("the box at {} is of another version ({error})", path.display())]
    OtherVersion {
        /// Its socket.
        path: PathBuf,
        /// What cannot be understood.
        error: serde_json::Error,
    },
    /// The box says why it does not do what it was told.
    #[error("{0}")]
    Refused(String),
}

fn called(name: Option<&str>) -> String {
    name.map(|name| format!("called '{name}' ")).unwrap_or_default()
}

/// What a client wants. It is written as a line of JSON: its name in quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The box's state: a [`BoxStatus`]. So is an empty line, and none.
    Status,
    /// Whether it does what it is there for. This and what follows get an [`Outcome`].
    Health,
    /// To read its configuration again.
    Reload,
    /// To let its flows go.
    Drain,
    /// To take flows in again.
    Undrain,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// What was done, in words.
    pub done: Vec<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// Where services have their directories, with a directory for each of their boxes.
const OF_SERVICES: &str = "/run/longhaul";

/// Where a control socket is.
pub(crate) struct SocketPath {
    box_name: String,
    path: PathBuf,
    /// The directory that the socket has for itself.
    own_dir: Option<PathBuf>,
}

impl SocketPath {
    /// The socket that was asked for; otherwise one in the directory that the service manager made
    /// for this box, or in that of this user's boxes.
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
        // A service may have several, of which the first will do.
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

    /// Removes the socket that a killed box left behind, and nothing else.
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

/// The box's end of the socket. The socket is removed when this is dropped, where that is allowed.
pub(crate) struct Control {
    listener: UnixListener,
    socket_path: SocketPath,
}

impl Control {
    /// Listens; what a box left behind that was killed is removed.
    pub fn listen(socket_path: SocketPath) -> Result<Self, ControlError> {
        let path = &socket_path.path;
        socket_path.clear()?;
        if let Some(dir) = &socket_path.own_dir {
            fs::create_dir_all(dir).map_err(|e| PathError::new("create", dir, e))?;
        }
        let listener =
            UnixListener::bind(path).map_err(|e| PathError::new("listen at", path, e))?;
        Ok(Control { listener, socket_path })
    }

    /// Starts the thread that answers, which lives as long as the process, and puts what goes wrong
    /// into words by `phrase`.
    pub fn serve(&self, of: Arc<dyn Operated>, phrase: Phrase) -> Result<(), ControlError> {
        let listener = self.listener.try_clone().map_err(ControlError::Serve)?;
        socket::serve(listener, move |line| answer(line, &*of, phrase))
            .map_err(ControlError::Thread)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Not allowed where privileges were given up: nobody listens there any more, which can be
        // told.
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
        None => {
            let error = "it does not know this request: longhaul is of another version";
            Outcome { done: vec![], error: Some(error.to_string()) }
        }
    };
    serde_json::to_vec(&outcome).ok()
}

/// What a client wants; `None` for what is no request.
fn read_request(line: &[u8]) -> Option<Request> {
    if line.is_empty() { Some(Request::Status) } else { serde_json::from_slice(line).ok() }
}

/// What became of asking a box.
#[derive(Debug)]
pub struct Asked {
    /// That by which it was found.
    pub name: String,
    /// Its state, or why there is none.
    pub state: Result<BoxStatus, ControlError>,
}

/// The state of the box with this name, of the one at this socket, or of all that are found.
///
/// # Errors
/// When there is none, or the one that was asked for does not answer. Among all, that is an answer.
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

/// Directories of boxes with this name, or of all.
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
    /// The box with this name, or at this socket, or the only one that runs here.
    ///
    /// # Errors
    /// When there is none, or more than one to choose from.
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

    /// The box's state.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self) -> Result<BoxStatus, ControlError> {
        self.ask(Request::Status)
    }

    /// Has it do something. What it did, in words.
    ///
    /// # Errors
    /// When it does not answer, or why it does not do it.
    pub fn order(&self, request: Request) -> Result<Vec<String>, ControlError> {
        let Outcome { done, error } = self.ask(request)?;
        error.map_or(Ok(done), |error| Err(ControlError::Refused(error)))
    }
}

/// What is in a directory, if it is one.
fn within(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The answers of the boxes that have these directories. What a killed box left behind answers
/// nobody.
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

    /// A directory for one test, removed in the end.
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
        assert!(refusal.contains("is there and is no socket"), "{refusal}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear");
        let link = scratch.0.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(at(&link).is_err() && link.is_symlink());
        fs::remove_file(&path).unwrap();

        let alive = UnixListener::bind(&path).unwrap();
        let refusal = at(&path).err().unwrap().to_string();
        assert!(refusal.contains("a box called 'west' runs already"), "{refusal}");
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
                let line = socket::read_line(&stream).unwrap();
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

    /// A box that does as it is told.
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
        socket::serve_one(served, |line| super::answer(line, &Obedient, phrase)).unwrap();
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
