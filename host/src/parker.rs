//! Sleep until a port, another thread or a deadline wakes the thread.

use crate::WakeUp;
use longhaul_port::{Port, PortError};
use longhaul_units::Duration;
use std::io;

/// Length of a sleep if a port gives no wake-ups.
const POLL_INTERVAL: Duration = Duration::from_us(100);

/// How far back duplicates of a shared descriptor are searched: beyond the descriptors of a port
/// without peer. A duplicate does no harm.
const SHARED_WITHIN: usize = 4;

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// A port: frames waited before the sleep began, or a descriptor became readable.
    ByPort,
    /// [`WakeUp::wake`] was called.
    ByCall,
    /// The timeout expired.
    ByTime,
    /// A signal handler ran.
    BySignal,
}

/// Puts a thread to sleep until a port, another thread or a timeout wakes it.
///
/// [`Parker::park`] does so in one call for the owner of the ports. A loop that shares ports calls
/// [`Parker::arm`] under its lock, [`Parker::sleep`] without it, and [`Parker::disarm`] under it
/// again.
///
/// It uses `ppoll` on a few descriptors and needs no registration, so ports may change their
/// descriptors at any time. Timeouts are exact to a nanosecond, apart from the thread's timer
/// slack.
#[derive(Debug, Default)]
pub struct Parker {
    /// Descriptors of the ports at the last `arm`, with capacity for the wake-up's.
    fds: Vec<libc::pollfd>,
    must_poll: bool,
    /// The last armed port.
    armed_last: usize,
}

impl Parker {
    /// A parker; one per sleeping thread.
    pub fn new() -> Self {
        Parker::default()
    }

    /// Arms all ports and collects their descriptors. `Ok(true)`: frames already wait, do not
    /// sleep; the ports are back in polling mode.
    ///
    /// # Errors
    /// The error of [`Port::arm`]. The ports are back in polling mode.
    pub fn arm<P: Port>(&mut self, ports: &mut [P]) -> Result<bool, PortError> {
        self.fds.clear();
        self.must_poll = false;
        for at in 0..ports.len() {
            self.armed_last = at;
            match ports[at].arm() {
                Ok(false) => {}
                stop => {
                    Self::disarm(&mut ports[..=at]);
                    return stop;
                }
            }
            self.must_poll |= !ports[at].capabilities().interrupts;
            for &fd in ports[at].descriptors().iter() {
                // Ports of one listener share its descriptor, and are adjacent.
                let is_noted =
                    self.fds.iter().rev().take(SHARED_WITHIN).any(|noted| noted.fd == fd);
                if !is_noted {
                    self.fds.push(readable(fd));
                }
            }
        }
        Ok(false)
    }

    /// Sleeps on the descriptors collected by [`Parker::arm`], on `wake`, and for at most
    /// `timeout`.
    ///
    /// If a port closes descriptors meanwhile, the sleep may end early or not be ended by that
    /// port.
    ///
    /// # Errors
    /// If the system call fails for a reason other than a signal.
    pub fn sleep(&mut self, wake: &WakeUp, timeout: Option<Duration>) -> io::Result<Woken> {
        let ports = self.fds.len();
        self.fds.push(readable(wake.descriptor()));
        let timeout = match (timeout, self.must_poll) {
            (Some(timeout), true) => Some(timeout.min(POLL_INTERVAL)),
            (None, true) => Some(POLL_INTERVAL),
            (timeout, false) => timeout,
        };
        let woken = poll(&mut self.fds, timeout);
        let is_called = self.fds[ports].revents != 0;
        self.fds.truncate(ports);
        match woken {
            Ok(0) => Ok(Woken::ByTime),
            Ok(_) if is_called => wake.silence().map(|()| Woken::ByCall),
            Ok(_) => Ok(Woken::ByPort),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Woken::BySignal),
            Err(error) => Err(error),
        }
    }

    /// The port that caused the last error of [`Parker::arm`].
    pub(crate) fn refused_by(&self) -> usize {
        self.armed_last
    }

    /// Returns all ports to polling mode.
    pub fn disarm<P: Port>(ports: &mut [P]) {
        for port in ports {
            port.disarm();
        }
    }

    /// Arms the ports, sleeps unless frames already wait, and disarms. The caller must call
    /// [`Port::service`], as each [`turn`](crate::turn) does.
    ///
    /// # Errors
    /// The error of [`Port::arm`], or [`PortError::Io`] if sleeping failed.
    pub fn park<P: Port>(
        &mut self,
        ports: &mut [P],
        wake: &WakeUp,
        timeout: Option<Duration>,
    ) -> Result<Woken, PortError> {
        if self.arm(ports)? {
            return Ok(Woken::ByPort);
        }
        let woken = self.sleep(wake, timeout);
        Self::disarm(ports);
        woken.map_err(|error| PortError::io("sleeping", error))
    }
}

fn readable(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Number of ready descriptors; 0 at the timeout.
fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let limit = timeout.map(|timeout| libc::timespec {
        // At most 2^64 ps: 18 million seconds.
        tv_sec: (timeout.as_ns() / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout.as_ns() % 1_000_000_000) as libc::c_long,
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` is a live, exclusive slice of `pollfd` whose length is given; `limit` is null
    // or points to a timespec that outlives the call; a null signal mask is allowed. The kernel
    // checks the descriptors' values.
    let count = unsafe {
        libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit, std::ptr::null())
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
