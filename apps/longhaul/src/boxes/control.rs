//! The control socket of a box: whoever connects gets its state as JSON.
//!
//! It is served on a thread of its own, one client after the other: a client that dawdles keeps other clients waiting, and
//! no frame.

use super::Observer;
use super::element::Element;
use super::status::BoxStatus;
use crate::lab::private_dir;
use crate::problem::Problem;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A box that does not answer for this long is stuck.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// How long a client may keep the others waiting.
const CLIENT_PATIENCE: Duration = Duration::from_millis(100);

/// Where the boxes of services are.
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
        let (path, own_dir) = match (path, std::env::var_os("RUNTIME_DIRECTORY")) {
            (Some(path), _) => (path.to_owned(), None),
            (None, Some(dir)) => (Path::new(&dir).join("control"), None),
            (None, None) => {
                let dir = private_dir("boxes")?.join(box_name);
                (dir.join("control"), Some(dir))
            }
        };
        Ok(Place { box_name: box_name.to_string(), path, own_dir })
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
        if UnixStream::connect(path).is_ok() {
            return Err(Problem::new(
                format!("a box called '{}' runs already", place.box_name),
                "end it, or choose another --name",
            ));
        }
        if let Some(dir) = &place.own_dir {
            fs::create_dir_all(dir).map_err(|e| Problem::io("create", dir, &e))?;
        }
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Problem::io("remove", path, &e)),
            _ => {}
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

fn serve_one<E: Element>(mut stream: UnixStream, of: &Observer<E>) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_PATIENCE))?;
    match of.status() {
        Some(status) => stream.write_all(&serde_json::to_vec(&status)?),
        None => Ok(()),
    }
}

/// The state of the box with this name, of the one at this socket, or of all that are found.
pub fn ask(name: Option<&str>, control: Option<&Path>) -> Result<Vec<BoxStatus>, Problem> {
    if let Some(path) = control {
        return ask_one(path).map(|status| vec![status]);
    }
    let mut found = Vec::new();
    for dir in [private_dir("boxes")?, PathBuf::from(OF_SERVICES)] {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_wanted =
            |path: &PathBuf| name.is_none_or(|name| path.file_name().is_some_and(|file| file == name));
        found.extend(entries.filter(is_wanted).map(|dir| dir.join("control")));
    }
    found.sort();
    // What a killed box left behind answers nobody.
    found.retain(|path| UnixStream::connect(path).is_ok());
    if found.is_empty() {
        let what =
            name.map_or("no box runs here".to_string(), |name| format!("no box called '{name}' runs here"));
        return Err(Problem::new(
            what,
            "start one with 'longhaul accelerate' or 'longhaul emulate', ask as the user who did, or name its --control",
        ));
    }
    found.iter().map(|path| ask_one(path)).collect()
}

fn ask_one(path: &Path) -> Result<BoxStatus, Problem> {
    let stuck = |e: io::Error| Problem::plain(format!("the box at {} does not answer: {e}", path.display()));
    let mut stream = UnixStream::connect(path).map_err(stuck)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN)).map_err(stuck)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(stuck)?;
    serde_json::from_str(&answer).map_err(|e| {
        if e.is_eof() {
            return Problem::plain(format!("the box at {} is ending", path.display()));
        }
        Problem::new(format!("the box at {} is of another version ({e})", path.display()), "restart it")
    })
}
