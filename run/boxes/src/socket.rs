//! A control socket: whoever connects writes one line, what is wanted, and gets an answer.
//!
//! It is served on a thread of its own, one client after the other: a client that dawdles keeps
//! other clients waiting, and no frame.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

/// How long a client may keep the others waiting, from its first byte to its last.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// The longest line that a client writes, in bytes.
const REQUEST_BYTES_MAX: u64 = 64;

/// Written at once, in bytes: little enough for the kernel to wait for room once, and not again for
/// each part.
const WRITE_BYTES: usize = 16 << 10;

/// Starts the thread that answers, which lives as long as the process. `answer` is given a line
/// without spaces around it; where it has none, the client is left without.
///
/// # Errors
/// When the thread cannot be started.
pub fn serve(
    listener: UnixListener,
    answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static,
) -> io::Result<()> {
    let serve = move || {
        for stream in listener.incoming() {
            match stream {
                // A client that goes away early is its own concern.
                Ok(stream) => drop(serve_one(stream, &answer)),
                // Out of descriptors, say; not to be met again at full speed.
                Err(_) => thread::sleep(CLIENT_PATIENCE),
            }
        }
    };
    thread::Builder::new().name("control".to_string()).spawn(serve).map(drop)
}

/// Answers one client.
///
/// # Errors
/// When it goes away early, or dawdles.
pub(crate) fn serve_one(
    stream: UnixStream,
    answer: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    match answer(&read_line(&stream)?) {
        Some(answer) => write_within(stream, &answer, CLIENT_PATIENCE),
        None => Ok(()),
    }
}

pub(crate) fn read_line(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    // A read gives what there is, so that a client that writes byte by byte has as many times its
    // patience.
    BufReader::new(stream.take(REQUEST_BYTES_MAX)).read_until(b'\n', &mut line)?;
    Ok(line.trim_ascii().to_vec())
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

/// Writes `line` to who serves at the other end: the answer, empty where there is none.
///
/// # Errors
/// When it hangs up early, or writes nothing for as long as `patience`.
pub fn ask(mut stream: UnixStream, line: &[u8], patience: Duration) -> io::Result<String> {
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(&[line, b"\n"].concat())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

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
