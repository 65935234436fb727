//! The control socket of a box: whoever connects gets its state as JSON.
//!
//! It is served on a thread of its own, one client after the other: a client that dawdles keeps other clients waiting, and
//! no frame.

use super::Observer;
use super::element::Element;
use super::status::BoxStatus;
use crate::lab::private_dir;
use crate::problem::Problem;
use serde::Serialize;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A box that does not answer for this long is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may keep the others waiting, from its first byte to its last.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// Written at once, in bytes: little enough for the kernel to wait for room once, and not again for each part.
const WRITE_BYTES: usize = 16 << 10;

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
    /// The socket that was asked for; otherwise one in the directory that the service manager made for this box, or in that
    /// of this user's boxes.
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
    pub fn serve<E: Element>(&self, of: Arc<Observer<E>>) -> Result<(), Problem> {
        let listener = self.listener.try_clone();
        let listener =
            listener.map_err(|e| Problem::plain(format!("cannot serve the control socket: {e}")))?;
        let serve = move || {
            for stream in listener.incoming() {
                match stream {
                    // A client that goes away early is its own concern.
                    Ok(stream) => drop(serve_one(stream, &of)),
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
        // Not allowed where privileges were given up: nobody listens there any more, which can be told.
        let _ = fs::remove_file(&self.place.path);
        let _ = self.place.own_dir.as_ref().map(fs::remove_dir);
    }
}

fn serve_one<E: Element>(stream: UnixStream, of: &Observer<E>) -> io::Result<()> {
    match of.status() {
        Some(status) => write_within(stream, &serde_json::to_vec(&status)?, CLIENT_PATIENCE),
        None => Ok(()),
    }
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
        let stream = UnixStream::connect(path).map_err(|e| does_not_answer(path, &e))?;
        return collect(path, stream).map(|status| vec![Answer::State(status)]);
    }
    let services = within(Path::new(OF_SERVICES));
    let mut found: Vec<PathBuf> = services.iter().flat_map(|service| within(service)).collect();
    found.extend(within(&private_dir("boxes")?));
    found.retain(|dir| name.is_none_or(|name| dir.file_name().is_some_and(|found| found == name)));
    found.sort();
    let mut answers = ask_each(&found);
    if answers.is_empty() {
        let what =
            name.map_or("no box runs here".to_string(), |name| format!("no box called '{name}' runs here"));
        return Err(Problem::new(
            what,
            "start one with 'longhaul accelerate' or 'longhaul emulate', ask as the user who did, or name its --control",
        ));
    }
    if name.is_some()
        && let Some(failed) = answers.iter().position(|answer| matches!(answer, Answer::Failed { .. }))
        && let Answer::Failed { error, .. } = answers.swap_remove(failed)
    {
        return Err(Problem::plain(error));
    }
    Ok(answers)
}

/// What is in a directory, if it is one.
fn within(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The answers of the boxes that have these directories. What a killed box left behind answers nobody.
fn ask_each(dirs: &[PathBuf]) -> Vec<Answer> {
    let one = |dir: &PathBuf| {
        let path = dir.join("control");
        let stream = UnixStream::connect(&path).ok()?;
        Some(collect(&path, stream).map_or_else(
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

fn collect(path: &Path, mut stream: UnixStream) -> Result<BoxStatus, Problem> {
    let mut answer = String::new();
    let read = stream.set_read_timeout(Some(ANSWER_WITHIN)).and_then(|()| stream.read_to_string(&mut answer));
    read.map_err(|e| does_not_answer(path, &e))?;
    if answer.is_empty() {
        return Err(Problem::plain(format!("the box at {} is ending", path.display())));
    }
    serde_json::from_str(&answer).map_err(|e| {
        if e.is_eof() {
            return Problem::new(format!("the box at {} stopped halfway", path.display()), "ask again");
        }
        Problem::new(format!("the box at {} is of another version ({e})", path.display()), "restart it")
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
            pairs: vec![],
        };
        let says = [
            ("ending", String::new()),
            ("good", serde_json::to_string(&state).unwrap()),
            ("old", "{}".to_string()),
        ];
        let serving = says.map(|(name, says)| {
            let control = Control::listen(scratch.place(name)).unwrap();
            thread::spawn(move || control.listener.accept().unwrap().0.write_all(says.as_bytes()).unwrap())
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
        assert!(name == "ending" && error.ends_with("is ending"), "{error}");
        assert_eq!(good.name, "good");
        assert!(old.to_text().starts_with("'old' has no status: "), "{old:?}");
        let json = serde_json::to_value(&answers).unwrap();
        assert!(json[0]["error"].is_string() && json[1]["error"].is_null(), "{json}");
        assert_eq!(json[2]["name"], "old");
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
