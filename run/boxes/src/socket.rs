//! Control sockets: a client connects, writes a one-line request and reads the answer.
//!
//! One thread serves clients one after the other: a slow client delays other clients, but no frame.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of reading a request, and of writing its answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: usize = 64;

/// Bytes per write: small enough that the kernel waits for buffer space at most once per write.
const WRITE_BYTES: usize = 16 << 10;

/// Starts the thread that answers, which runs as long as the process. It passes `answer` each
/// request line, trimmed; if `answer` returns none, the client gets no reply.
///
/// # Errors
/// If the thread cannot be started.
pub fn serve(
    listener: UnixListener,
    answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static,
) -> io::Result<()> {
    serve_all(vec![listener], move |line, stream| reply(stream, answer(line)))
}

/// Starts one thread that serves the clients of all `listeners`, as long as the process runs. It
/// passes `respond` each request line, trimmed, with its connection.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn serve_all(
    listeners: Vec<UnixListener>,
    respond: impl Fn(&[u8], UnixStream) -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let serve = move || {
        loop {
            let served = next_clients(&listeners).map(|clients| {
                // Errors of a client that disconnects early are ignored.
                clients.into_iter().for_each(|stream| drop(serve_one(stream, &respond)));
            });
            if served.is_err() {
                // For example, no free descriptors: retry at a bounded rate.
                thread::sleep(CLIENT_PATIENCE);
            }
        }
    };
    thread::Builder::new().name("control".to_string()).spawn(serve).map(drop)
}

/// Waits for clients; returns the first one of each listener that has any.
fn next_clients(listeners: &[UnixListener]) -> io::Result<Vec<UnixStream>> {
    let mut waiting: Vec<PollFd<'_>> =
        listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
    retry_on_intr(|| poll(&mut waiting, None))?;
    let with_clients = waiting.iter().zip(listeners).filter(|(fd, _)| !fd.revents().is_empty());
    with_clients.map(|(_, listener)| Ok(listener.accept()?.0)).collect()
}

/// Serves one client.
///
/// # Errors
/// If the client disconnects early, or is too slow.
pub(crate) fn serve_one(
    stream: UnixStream,
    respond: impl Fn(&[u8], UnixStream) -> io::Result<()>,
) -> io::Result<()> {
    respond(&read_line(&stream, CLIENT_PATIENCE)?, stream)
}

/// Sends the client its answer, if there is one.
///
/// # Errors
/// If the client disconnects early, or is too slow.
pub(crate) fn reply(stream: UnixStream, answer: Option<Vec<u8>>) -> io::Result<()> {
    answer.map_or(Ok(()), |answer| write_within(stream, &answer, CLIENT_PATIENCE))
}

/// Reads a request within `limit`, up to the end of its line.
pub(crate) fn read_line(mut stream: &UnixStream, limit: Duration) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + limit;
    let (mut bytes, mut len) = ([0; REQUEST_BYTES_MAX], 0);
    while len < bytes.len() && !bytes[..len].contains(&b'\n') {
        stream.set_read_timeout(Some(time_left(deadline)?))?;
        match stream.read(&mut bytes[len..])? {
            0 => break,
            read => len += read,
        }
    }
    let line = bytes[..len].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(line.trim_ascii().to_vec())
}

fn write_within(mut stream: UnixStream, bytes: &[u8], limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    for part in bytes.chunks(WRITE_BYTES) {
        stream.set_write_timeout(Some(time_left(deadline)?))?;
        stream.write_all(part)?;
    }
    Ok(())
}

fn time_left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Sends the request `line` and returns the answer, which is empty if there is none.
///
/// # Errors
/// If the server disconnects early, or writes nothing for `patience`.
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
    fn a_client_that_writes_slowly_is_left_in_the_end() {
        let (served, mut client) = UnixStream::pair().unwrap();
        let writer = thread::spawn(move || {
            while client.write_all(b"s").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        });
        // Each byte comes quickly, but all of them would take more than six seconds.
        let read = read_line(&served, Duration::from_millis(500));
        let timeouts = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(read.is_err_and(|e| timeouts.contains(&e.kind())));
        drop(served);
        writer.join().unwrap();
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
        // Each part is taken quickly, but all of them would take more than four seconds.
        assert!(write_within(served, &vec![0; 64 << 20], Duration::from_millis(100)).is_err());
        reader.join().unwrap();
    }
}
