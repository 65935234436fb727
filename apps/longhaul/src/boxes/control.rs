//! The control socket of a box: whoever connects writes one line, what is wanted, and gets an
//! answer as JSON.
//!
//! It is served on a thread of its own, one client after the other: a client that dawdles keeps
//! other clients waiting, and no frame.

use super::operation::Operated;
use super::status::BoxStatus;
use crate::lab::private_dir;
use crate::problem::Problem;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A box that does not answer for this long is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may keep the others waiting, from its first byte to its last.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// The longest line that a client writes, in bytes.
const REQUEST_BYTES_MAX: u64 = 64;

/// Written at once, in bytes: little enough for the kernel to wait for room once, and not again for
/// each part.
const WRITE_BYTES: usize = 16 << 10;

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
pub struct Place {
    box_name: String,
    path: PathBuf,
    /// The directory that the socket has for itself.
    own_dir: Option<PathBuf>,
}

impl Place {
    /// The socket that was asked for; otherwise one in the directory that the service manager made
    /// for this box, or in that of this user's boxes.
    pub fn decide(box_name: &str, path: Option<&Path>) -> Result<Self, Problem> {
        let fits = !box_name.is_empty()
            && box_name.len() <= 40
            && box_name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.@".contains(&b))
            && !box_name.starts_with('.');
        if !fits {
            return Err(Problem::new(
                format!("'{box_name}' is no name for a box"),
                "give it 1 to 40 letters, digits, - or _",
            ));
        }
        let box_name = box_name.to_string();
        if let Some(path) = path {
            return Ok(Place { box_name, path: path.to_owned(), own_dir: None });
        }
        // A service may have several, of which the first will do.
        let of_service = std::env::var_os("RUNTIME_DIRECTORY");
        let of_service = of_service.and_then(|dirs| std::env::split_paths(&dirs).next());
        let dir = match of_service {
            Some(dir) => dir,
            None => private_dir("boxes")?,
        };
        Ok(Place::below(&dir, box_name))
    }

    fn below(dir: &Path, box_name: String) -> Self {
        let own_dir = dir.join(&box_name);
        Place { box_name, path: own_dir.join("control"), own_dir: Some(own_dir) }
    }

    /// Removes the socket that a killed box left behind, and nothing else.
    fn clear(&self) -> Result<(), Problem> {
        let path = &self.path;
        match fs::symlink_metadata(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Problem::io("look at", path, &e)),
            Ok(found) if found.file_type().is_socket() => {}
            Ok(_) => {
                return Err(Problem::new(
                    format!("{} is there and is no socket", path.display()),
                    "it stays; choose another --control",
                ));
            }
        }
        match UnixStream::connect(path) {
            Ok(_) => Err(Problem::new(
                format!("a box called '{}' runs already", self.box_name),
                "end it, or choose another --name or --control",
            )),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(|e| Problem::io("remove", path, &e))
            }
            Err(e) => Err(Problem::io("replace", path, &e)),
        }
    }
}

/// The box's end of the socket. The socket is removed when this is dropped, where that is allowed.
pub struct Control {
    listener: UnixListener,
    place: Place,
}

impl Control {
    /// Listens; what a box left behind that was killed is removed.
    pub fn listen(place: Place) -> Result<Self, Problem> {
        let path = &place.path;
        place.clear()?;
        if let Some(dir) = &place.own_dir {
            fs::create_dir_all(dir).map_err(|e| Problem::io("create", dir, &e))?;
        }
        let listener = UnixListener::bind(path).map_err(|e| Problem::io("listen at", path, &e))?;
        Ok(Control { listener, place })
    }

    /// Starts the thread that answers, which lives as long as the process.
    pub fn serve(&self, of: Arc<dyn Operated>) -> Result<(), Problem> {
        let listener = self.listener.try_clone();
        let listener = listener
            .map_err(|e| Problem::plain(format!("cannot serve the control socket: {e}")))?;
        let serve = move || {
            for stream in listener.incoming() {
                match stream {
                    // A client that goes away early is its own concern.
                    Ok(stream) => drop(serve_one(stream, &*of)),
                    // Out of descriptors, say; not to be met again at full speed.
                    Err(_) => std::thread::sleep(CLIENT_PATIENCE),
                }
            }
        };
        match std::thread::Builder::new().name("control".to_string()).spawn(serve) {
            Ok(_) => Ok(()),
            Err(e) => Err(Problem::plain(format!("cannot start the control thread: {e}"))),
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Not allowed where privileges were given up: nobody listens there any more, which can be
        // told.
        let _ = fs::remove_file(&self.place.path);
        let _ = self.place.own_dir.as_ref().map(fs::remove_dir);
    }
}

fn serve_one(stream: UnixStream, of: &dyn Operated) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    let outcome = |done: Result<Vec<String>, Problem>| match done {
        Ok(done) => Outcome { done, error: None },
        Err(problem) => Outcome { done: vec![], error: Some(problem.to_string()) },
    };
    let answer = match read_request(&stream)? {
        Some(Request::Status) => match of.status() {
            Some(status) => serde_json::to_vec(&status)?,
            None => return Ok(()),
        },
        Some(Request::Health) => {
            let reasons = of.not_ready();
            let error = (!reasons.is_empty()).then(|| reasons.join("; "));
            serde_json::to_vec(&Outcome { done: of.notes(), error })?
        }
        Some(Request::Reload) => serde_json::to_vec(&outcome(of.reload()))?,
        Some(Request::Drain) => {
            serde_json::to_vec(&outcome(of.set_draining(true).map(|()| vec![])))?
        }
        Some(Request::Undrain) => {
            serde_json::to_vec(&outcome(of.set_draining(false).map(|()| vec![])))?
        }
        None => {
            let error =
                Some("it does not know this request: longhaul is of another version".to_string());
            serde_json::to_vec(&Outcome { done: vec![], error })?
        }
    };
    write_within(stream, &answer, CLIENT_PATIENCE)
}

/// What a client wants; `None` for what is no request.
fn read_request(stream: &UnixStream) -> io::Result<Option<Request>> {
    let mut line = Vec::new();
    // A read gives what there is, so that a client that writes byte by byte has as many times its
    // patience.
    BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_until(b'\n', &mut line)?;
    let line = line.trim_ascii();
    Ok(if line.is_empty() { Some(Request::Status) } else { serde_json::from_slice(line).ok() })
}

fn write_within(mut stream: UnixStream, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    for part in bytes.chunks(WRITE_BYTES) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        stream.write_all(part)?;
    }
    Ok(())
}

/// What became of asking a box.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Answer {
    /// Its state.
    State(BoxStatus),
    /// None, and why. The name is that by which it was found.
    Failed { name: String, error: String },
}

impl Answer {
    /// For people.
    pub fn to_text(&self) -> String {
        match self {
            Answer::State(state) => state.to_text(),
            Answer::Failed { name, error } => format!("'{name}' has no status: {error}\n"),
        }
    }
}

/// The state of the box with this name, of the one at this socket, or of all that are found.
///
/// # Errors
/// When there is none, or the one that was asked for does not answer. Among all, that is an answer.
pub fn ask(name: Option<&str>, control: Option<&Path>) -> Result<Vec<Answer>, Problem> {
    if let Some(path) = control {
        return Reached(path.to_owned()).status().map(|status| vec![Answer::State(status)]);
    }
    let mut answers = ask_each(&found(name)?);
    if answers.is_empty() {
        return Err(nobody(name));
    }
    if name.is_some()
        && let Some(failed) =
            answers.iter().position(|answer| matches!(answer, Answer::Failed { .. }))
        && let Answer::Failed { error, .. } = answers.swap_remove(failed)
    {
        return Err(Problem::plain(error));
    }
    Ok(answers)
}

/// Directories of boxes with this name, or of all.
fn found(name: Option<&str>) -> Result<Vec<PathBuf>, Problem> {
    let services = within(Path::new(OF_SERVICES));
    let mut found: Vec<PathBuf> = services.iter().flat_map(|service| within(service)).collect();
    found.extend(within(&private_dir("boxes")?));
    found.retain(|dir| name.is_none_or(|name| dir.file_name().is_some_and(|found| found == name)));
    found.sort();
    Ok(found)
}

fn nobody(name: Option<&str>) -> Problem {
    let what = name
        .map_or("no box runs here".to_string(), |name| format!("no box called '{name}' runs here"));
    Problem::new(
        what,
        "start one with 'longhaul accelerate' or 'longhaul emulate', ask as the user who did, or name its --control",
    )
}

/// The control socket of one box.
#[derive(Debug)]
pub struct Reached(PathBuf);

impl Reached {
    /// The box with this name, or at this socket, or the only one that runs here.
    ///
    /// # Errors
    /// When there is none, or more than one to choose from.
    pub fn find(name: Option<&str>, control: Option<&Path>) -> Result<Self, Problem> {
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
                let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
                Err(Problem::new(
                    format!("several boxes run here: {}", names.join(", ")),
                    "name one of them",
                ))
            }
        }
    }

    fn ask<T: DeserializeOwned>(&self, request: Request) -> Result<T, Problem> {
        let stream = UnixStream::connect(&self.0).map_err(|e| does_not_answer(&self.0, &e))?;
        collect(&self.0, stream, request)
    }

    /// The box's state.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self) -> Result<BoxStatus, Problem> {
        self.ask(Request::Status)
    }

    /// Has it do something. What it did, in words.
    ///
    /// # Errors
    /// When it does not answer, or why it does not do it.
    pub fn order(&self, request: Request) -> Result<Vec<String>, Problem> {
        let Outcome { done, error } = self.ask(request)?;
        error.map_or(Ok(done), |error| Err(Problem::plain(error)))
    }
}

/// What is in a directory, if it is one.
fn within(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The answers of the boxes that have these directories. What a killed box left behind answers
/// nobody.
fn ask_each(dirs: &[PathBuf]) -> Vec<Answer> {
    let one = |dir: &PathBuf| {
        let path = dir.join("control");
        let stream = UnixStream::connect(&path).ok()?;
        Some(collect(&path, stream, Request::Status).map_or_else(
            |problem| Answer::Failed {
                name: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                error: problem.to_string(),
            },
            Answer::State,
        ))
    };
    dirs.iter().filter_map(one).collect()
}

fn does_not_answer(path: &Path, error: &io::Error) -> Problem {
    Problem::plain(format!("the box at {} does not answer: {error}", path.display()))
}

fn collect<T: DeserializeOwned>(
    path: &Path,
    mut stream: UnixStream,
    request: Request,
) -> Result<T, Problem> {
    let mut answer = String::new();
    let mut line = serde_json::to_vec(&request).unwrap_or_default();
    line.push(b'\n');
    let asked = stream.set_read_timeout(Some(ANSWER_WITHIN)).and_then(|()| stream.write_all(&line));
    asked
        .and_then(|()| stream.read_to_string(&mut answer))
        .map_err(|e| does_not_answer(path, &e))?;
    if answer.is_empty() {
        return Err(Problem::new(
            format!("the box at {} is ending, or hangs", path.display()),
            "ask again; 'longhaul box health' tells which",
        ));
    }
    serde_json::from_str(&answer).map_err(|e| {
        if e.is_eof() {
            return Problem::new(
                format!("the box at {} stopped halfway", path.display()),
                "ask again",
            );
        }
        Problem::new(
            format!("the box at {} is of another version ({e})", path.display()),
            "restart it",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A directory for one test, removed in the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("longhaul-{test}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            Scratch(dir)
        }

        fn place(&self, box_name: &str) -> Place {
            Place::below(&self.0, box_name.to_string())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn at(path: &Path) -> Result<Control, Problem> {
        Control::listen(Place::decide("west", Some(path)).unwrap())
    }

    #[test]
    fn only_a_dead_socket_is_replaced() {
        let scratch = Scratch::new("replaced");
        let path = scratch.0.join("here");
        fs::write(&path, "dear").unwrap();
        let refusal = at(&path).err().unwrap().to_string();
        assert!(refusal.contains("is no socket; it stays"), "{refusal}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear");
        let link = scratch.0.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(at(&link).is_err() && link.is_symlink());
        fs::remove_file(&path).unwrap();

        let alive = UnixListener::bind(&path).unwrap();
        let refusal = at(&path).err().unwrap().to_string();
        assert!(refusal.contains("a box called 'west' runs already; end it"), "{refusal}");
        drop(alive);
        assert!(path.exists());
        drop(at(&path).unwrap());
        assert!(!path.exists(), "it goes with the box");
    }

    #[test]
    fn boxes_in_one_directory_have_a_socket_each() {
        let scratch = Scratch::new("each");
        let boxes = ["west", "east"].map(|name| Control::listen(scratch.place(name)).unwrap());
        assert_eq!(boxes[0].place.path, scratch.0.join("west/control"));
        drop(boxes);
        assert!(within(&scratch.0).is_empty(), "something stays behind");
    }

    #[test]
    fn a_box_that_fails_leaves_the_others_their_answers() {
        let scratch = Scratch::new("others");
        let state = BoxStatus {
            name: "good".to_string(),
            command: "emulate".to_string(),
            pid: 1,
            user: "nobody".to_string(),
            uptime_s: 1.0,
            not_ready: vec![],
            notes: vec![],
            pairs: vec![],
        };
        let says = [
            ("ending", String::new()),
            ("good", serde_json::to_string(&state).unwrap()),
            ("old", "{}".to_string()),
        ];
        let serving = says.map(|(name, says)| {
            let control = Control::listen(scratch.place(name)).unwrap();
            thread::spawn(move || {
                let mut stream = control.listener.accept().unwrap().0;
                assert_eq!(read_request(&stream).unwrap(), Some(Request::Status));
                stream.write_all(says.as_bytes()).unwrap()
            })
        });
        let left_behind = scratch.0.join("killed");
        fs::create_dir(&left_behind).unwrap();
        drop(UnixListener::bind(left_behind.join("control")).unwrap());
        let dirs = ["ending", "good", "killed", "old"].map(|name| scratch.0.join(name));
        let answers = ask_each(&dirs);
        serving.into_iter().for_each(|one| one.join().unwrap());
        let [Answer::Failed { name, error }, Answer::State(good), old] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(name == "ending" && error.contains("is ending"), "{error}");
        assert_eq!(good.name, "good");
        assert!(old.to_text().starts_with("'old' has no status: "), "{old:?}");
        let json = serde_json::to_value(&answers).unwrap();
        assert!(json[0]["error"].is_string() && json[1]["error"].is_null(), "{json}");
        assert_eq!(json[2]["name"], "old");
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

        fn reload(&self) -> Result<Vec<String>, Problem> {
            Ok(vec!["pair x: mode".to_string()])
        }

        fn set_draining(&self, draining: bool) -> Result<(), Problem> {
            if draining { Err(Problem::new("no", "do not")) } else { Ok(()) }
        }
    }

    fn outcome_of(line: &[u8]) -> Outcome {
        let (served, mut client) = UnixStream::pair().unwrap();
        client.write_all(line).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        serve_one(served, &Obedient).unwrap();
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
        assert_eq!(outcome_of(b"\"drain\"\n"), error("no; do not"));
        assert_eq!(outcome_of(b"\"undrain\""), Outcome::default());
        assert_eq!(outcome_of(b"\"health\"\n"), error("one; two"));
        for line in [&b"\"fly\"\n"[..], b"{\n", &[0xff; 64], &[b'['; 64]] {
            assert!(outcome_of(line).error.is_some_and(|error| error.contains("does not know")));
        }
    }

    #[test]
    fn a_client_that_reads_slowly_is_left_in_the_end() {
        let (served, mut client) = UnixStream::pair().unwrap();
        let reader = thread::spawn(move || {
            let mut some = vec![0; 16 << 10];
            while client.read(&mut some).is_ok_and(|n| n > 0) {
                thread::sleep(Duration::from_millis(1));
            }
        });
        // Each part is taken soon; all of them would take more than four seconds.
        assert!(write_within(served, &vec![0; 64 << 20], Duration::from_millis(100)).is_err());
        reader.join().unwrap();
    }
}
