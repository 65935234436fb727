//! Round trip, loss and path MTU to a peer, over UDP and without privileges.
//!
//! Requests are sent at a low rate; a reply is as short as the shortest request, so the answering
//! side cannot be used to flood others. The path MTU is found with unfragmentable requests of
//! various lengths.

use super::answer::{Header, ProbeKind};
use crate::problem::Problem;
use longhaul_planner::roce_mtu;
use serde::Serialize;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, IsTerminal as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// Default UDP port of the answering side.
pub const PORT: u16 = 47_910;
/// The same, for the command line.
pub const PORT_TEXT: &str = "47910";

/// Interval between probes: 0.05 Mbit/s with the shortest ones.
const INTERVAL: Duration = Duration::from_millis(10);
/// Attempts to reach the peer, and the wait for each.
const ATTEMPTS: u32 = 4;
const FIRST_WAIT: Duration = Duration::from_millis(750);
/// Attempts for each length, so that loss is not mistaken for a limit.
const LENGTH_ATTEMPTS: u32 = 3;
/// Maximum wait for a reply.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Maximum MTU to probe: jumbo frames.
const MTU_MAX: u32 = 9_216;
/// Jumbo frames, RDMA's 4096, Ethernet, and the minimum of IPv6 and IPv4.
const USUAL_MTUS: [u32; 6] = [MTU_MAX, 9_000, 4_200, 1_500, 1_280, 576];

/// Measurements of a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The peer.
    pub peer: SocketAddr,
    pub is_ipv6: bool,
    pub probes: u32,
    pub answers: u32,
    /// Loss of one direction, assuming symmetric loss.
    pub loss: f64,
    pub rtt_min_us: f64,
    pub rtt_median_us: f64,
    pub rtt_p99_us: f64,
    /// Bytes of the longest IP packet that arrives whole.
    pub path_mtu: Option<u32>,
    /// The resulting path MTU of RDMA.
    pub roce_mtu: Option<u32>,
}

/// Measures the path to `HOST[:PORT]` with `probes` probes.
pub fn measure(peer: &str, probes: u32) -> Result<Measured, Problem> {
    let address = resolve(peer)?;
    let mut prober = Prober::connect(address)?;
    prober.reach()?;
    let (sent, mut times) = prober.round_trips(probes)?;
    times.sort_unstable();
    let Some(&shortest) = times.first() else {
        return Err(Problem::new(
            format!("none of {sent} probes was answered by {address}"),
            "the path is down, or a firewall limits UDP",
        ));
    };
    let of = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let wait = (of(0.99) * 2 + Duration::from_millis(100)).min(WAIT_MAX);
    let path_mtu = prober.path_mtu(wait)?;
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let answers = times.len() as u32;
    Ok(Measured {
        peer: address,
        is_ipv6: address.is_ipv6(),
        probes: sent,
        answers,
        loss: 1.0 - (f64::from(answers) / f64::from(sent)).sqrt(),
        rtt_min_us: us(shortest),
        rtt_median_us: us(of(0.5)),
        rtt_p99_us: us(of(0.99)),
        path_mtu,
        roce_mtu: path_mtu.and_then(roce_mtu),
    })
}

/// An address of `HOST`, `HOST:PORT`, `IPv6` or `[IPv6]:PORT`.
fn resolve(peer: &str) -> Result<SocketAddr, Problem> {
    if let Ok(address) = peer.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(ip) = peer.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let (host, port) = match peer.rsplit_once(':') {
        Some((host, port)) => {
            let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(|| {
                Problem::new(
                    format!("'{port}' is not a port"),
                    format!("write HOST:PORT, as in {host}:{PORT}"),
                )
            })?;
            (host, port)
        }
        None => (peer, PORT),
    };
    let unknown = |why: &str| {
        Problem::new(
            format!("the name '{host}' does not resolve{why}"),
            "check it, or give an address",
        )
    };
    let mut found = (host, port).to_socket_addrs().map_err(|e| unknown(&format!(" ({e})")))?;
    found.next().ok_or_else(|| unknown(""))
}

struct Prober {
    socket: UdpSocket,
    peer: SocketAddr,
    session: u64,
    next: u32,
    shows_progress: bool,
}

impl Prober {
    fn connect(peer: SocketAddr) -> Result<Self, Problem> {
        let cannot = |e: io::Error| Problem::plain(format!("cannot send to {peer}: {e}"));
        let any: IpAddr = if peer.is_ipv6() {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        };
        let socket = UdpSocket::bind((any, 0)).map_err(cannot)?;
        socket.connect(peer).map_err(cannot)?;
        Ok(Prober {
            socket,
            peer,
            session: RandomState::new().hash_one(peer),
            next: 0,
            shows_progress: io::stderr().is_terminal(),
        })
    }

    fn progress(&self, text: &str) {
        if self.shows_progress {
            eprint!("\r{text}\x1b[K");
        }
    }

    /// Sends a request of `length` bytes.
    fn ask(&mut self, length: usize) -> io::Result<u32> {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let mut datagram = vec![0; length.max(Header::LEN)];
        Header { kind: ProbeKind::Request, session: self.session, number }.write(&mut datagram);
        self.socket.send(&datagram)?;
        Ok(number)
    }

    /// Returns the number of the next reply before `deadline`, if any.
    fn answer(&self, deadline: Instant) -> io::Result<Option<u32>> {
        let mut datagram = [0; 2 * Header::LEN];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv(&mut datagram) {
                Ok(length) => {
                    let header = Header::read(&datagram[..length]);
                    let ours =
                        header.filter(|h| h.kind == ProbeKind::Reply && h.session == self.session);
                    if let Some(header) = ours {
                        return Ok(Some(header.number));
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(None);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Checks that the peer replies.
    fn reach(&mut self) -> Result<(), Problem> {
        let peer = self.peer;
        let start = format!("start 'longhaul plan --answer {}' there", peer.port());
        for attempt in 1..=ATTEMPTS {
            self.progress(&format!("asking {peer}, attempt {attempt} of {ATTEMPTS}"));
            let heard =
                self.ask(Header::LEN).and_then(|_| self.answer(Instant::now() + FIRST_WAIT));
            match heard {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => {}
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
                    self.progress("");
                    return Err(Problem::new(
                        format!("nobody answers on UDP port {} of {}", peer.port(), peer.ip()),
                        start,
                    ));
                }
                Err(e) => {
                    self.progress("");
                    return Err(Problem::plain(format!("cannot reach {peer}: {e}")));
                }
            }
        }
        self.progress("");
        let waited = FIRST_WAIT * ATTEMPTS;
        Err(Problem::new(
            format!("no answer from {peer} within {} s", waited.as_secs_f64()),
            format!(
                "{start}, and open UDP port {} in the firewalls in both directions",
                peer.port()
            ),
        ))
    }

    /// Returns the number of probes sent, and the round-trip times of those answered.
    fn round_trips(&mut self, probes: u32) -> Result<(u32, Vec<Duration>), Problem> {
        let lost_socket = |e: io::Error| Problem::plain(format!("probing failed: {e}"));
        let first = self.next;
        let mut asked: Vec<Instant> = Vec::with_capacity(probes as usize);
        let mut times: Vec<Option<Duration>> = vec![None; probes as usize];
        let begun = Instant::now();
        let mut take = |number: u32, asked: &[Instant]| {
            let index = number.wrapping_sub(first) as usize;
            if let (Some(at), Some(time)) = (asked.get(index), times.get_mut(index)) {
                time.get_or_insert(at.elapsed());
            }
        };
        for sent in 0..probes {
            if sent % 20 == 0 {
                self.progress(&format!("round trips: {sent} of {probes}"));
            }
            asked.push(Instant::now());
            match self.ask(Header::LEN) {
                Ok(_) => {}
                // The answering side has ended: counts as loss.
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
                Err(e) => return Err(lost_socket(e)),
            }
            let due = begun + INTERVAL * (sent + 1);
            while let Some(number) =
                self.answer(due).or_else(refused_is_none).map_err(lost_socket)?
            {
                take(number, &asked);
            }
        }
        let last = Instant::now() + WAIT_MAX.min(begun.elapsed().max(Duration::from_millis(300)));
        let mut missing = true;
        while missing {
            let Some(number) = self.answer(last).or_else(refused_is_none).map_err(lost_socket)?
            else {
                break;
            };
            take(number, &asked);
            missing = number != first.wrapping_add(probes - 1);
        }
        self.progress("");
        Ok((probes, times.into_iter().flatten().collect()))
    }

    /// Bytes of the longest IP packet that arrives.
    fn path_mtu(&mut self, wait: Duration) -> Result<Option<u32>, Problem> {
        let headers = if self.peer.is_ipv6() { 48 } else { 28 };
        if let Err(e) = forbid_fragments(&self.socket, self.peer.is_ipv6()) {
            return Err(Problem::plain(format!("cannot forbid fragmentation: {e}")));
        }
        let (mut passes, mut fails) = (None, MTU_MAX + 1);
        // Try common MTUs first, then search by bisection between them.
        for mtu in USUAL_MTUS {
            self.progress(&format!("path MTU: {mtu}?"));
            if self.passes(mtu - headers, wait) {
                passes = Some(mtu);
                break;
            }
            fails = mtu;
        }
        let Some(mut passes) = passes else {
            self.progress("");
            return Ok(None);
        };
        while fails - passes > 1 {
            self.progress(&format!("path MTU: {passes} to {fails} bytes"));
            let middle = passes + (fails - passes) / 2;
            if self.passes(middle - headers, wait) { passes = middle } else { fails = middle }
        }
        self.progress("");
        Ok(Some(passes))
    }

    /// Returns whether a request of `payload` bytes is answered.
    fn passes(&mut self, payload: u32, wait: Duration) -> bool {
        for _ in 0..LENGTH_ATTEMPTS {
            // Exceeds the MTU of this end's interface, or of a router that reported it.
            let Ok(number) = self.ask(payload as usize) else { return false };
            let deadline = Instant::now() + wait;
            loop {
                match self.answer(deadline) {
                    Ok(Some(heard)) if heard == number => return true,
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => return false,
                }
            }
        }
        false
    }
}

fn refused_is_none(e: io::Error) -> io::Result<Option<u32>> {
    if e.kind() == ErrorKind::ConnectionRefused { Ok(None) } else { Err(e) }
}

/// Makes the kernel set "don't fragment" and ignore its cached path MTU.
fn forbid_fragments(socket: &UdpSocket, is_ipv6: bool) -> io::Result<()> {
    let (level, name, value) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    };
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open for as long as the socket is borrowed, and value is an int
    // that outlives the call.
    let code = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::answer;
    use std::thread;

    #[test]
    fn peers_are_written_in_all_the_usual_ways() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:47910"),
            ("192.0.2.1:5", "192.0.2.1:5"),
            ("2001:db8::1", "[2001:db8::1]:47910"),
            ("[2001:db8::1]", "[2001:db8::1]:47910"),
            ("[2001:db8::1]:5", "[2001:db8::1]:5"),
        ] {
            assert_eq!(resolve(text).unwrap().to_string(), address, "{text}");
        }
        for (text, part) in [
            ("host:x", "'x' is not a port"),
            ("host:0", "'0' is not a port"),
            ("", "does not resolve"),
        ] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Measures until a measurement has this number of answers and this path MTU. A busy machine
    /// may delay the answering side for longer than a probe waits.
    fn undelayed(port: u16, probes: u32, (answers, path_mtu): (u32, u32)) -> Measured {
        let peer = format!("127.0.0.1:{port}");
        let mut tries = (0..10).filter_map(|_| measure(&peer, probes).ok());
        let is_right =
            |found: &Measured| found.answers == answers && found.path_mtu == Some(path_mtu);
        tries.find(is_right).expect("an undelayed measurement")
    }

    #[test]
    fn a_path_is_measured_and_its_mtu_is_found_up_to_jumbo_frames() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        thread::spawn(move || answer::serve(&socket));
        let measured = undelayed(port, 20, (20, MTU_MAX));
        assert_eq!((measured.probes, measured.answers, measured.loss), (20, 20, 0.0));
        assert!(measured.rtt_min_us > 0.0 && measured.rtt_min_us <= measured.rtt_median_us);
        assert!(measured.rtt_median_us <= measured.rtt_p99_us);
        // The loopback interface carries 65,536.
        assert_eq!((measured.path_mtu, measured.roce_mtu), (Some(MTU_MAX), Some(4096)));
    }

    #[test]
    fn a_limit_on_length_is_found_exactly_and_loss_is_counted() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        // A path that drops datagrams above 4242 bytes, and each fourth short request.
        thread::spawn(move || {
            let (mut datagram, mut asked) = ([0; 65_536], 0);
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                asked += 1;
                let is_dropped = length > 4242 - 28 || (length == Header::LEN && asked % 4 == 0);
                if let Some(answer) = answer::to(&datagram[..length]).filter(|_| !is_dropped) {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        let measured = undelayed(port, 40, (30, 4242));
        assert_eq!((measured.path_mtu, measured.roce_mtu), (Some(4242), Some(4096)));
        assert_eq!((measured.probes, measured.answers), (40, 30));
        assert!((measured.loss - (1.0 - 0.75_f64.sqrt())).abs() < 1e-9);
    }

    #[test]
    fn nobody_there_is_said_at_once() {
        // One that the kernel gives nobody by itself.
        let port = 1;
        let error = measure(&format!("127.0.0.1:{port}"), 20).unwrap_err().to_string();
        assert!(
            error.contains("nobody answers") && error.contains(&format!("--answer {port}")),
            "{error}"
        );
    }
}
