//! Hosts as network namespaces of this machine, and boxes between them: `longhaul accelerate` and
//! `longhaul emulate` on veth pairs, in path order.

pub mod failures;
mod raw;
mod traffic;

pub use raw::Raw;
pub use traffic::{Arrivals, Flow, SILENCE, Traffic};

use crate::guest::skip_loudly;
use crate::process::cpu_time;
use crate::program::{Finished, Program, longhaul};
use crate::{RuntimeDir, Turn};
use longhaul_netdev::watch::{Presence, Watch};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of quick operations that may hang.
pub const LIMIT: Duration = Duration::from_secs(240);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Longer than a round trip of the longest fibre in a test.
const REPEAT_AFTER: Duration = Duration::from_secs(2);

/// Whether AF_XDP sockets are available; reports loudly that `what` is skipped if not.
pub fn has_af_xdp(what: &str) -> bool {
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0) };
    if fd < 0 {
        skip_loudly(what, &io::Error::last_os_error());
        return false;
    }
    // SAFETY: the descriptor was just created and is used nowhere else.
    unsafe { libc::close(fd) };
    true
}

/// A network namespace; removed when dropped.
pub struct Namespace {
    /// Its name under `ip netns`.
    pub name: String,
}

impl Namespace {
    fn new(name: &str) -> Result<Self, String> {
        let name = format!("lh{}-{name}", std::process::id());
        ip(&format!("netns add {name}"))?;
        let namespace = Namespace { name };
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }

    fn ip(&self, arguments: &str) -> Result<(), String> {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// Runs `ip -n` with `arguments`, split at spaces.
    ///
    /// # Panics
    /// If it fails.
    pub fn set(&self, arguments: &str) {
        self.ip(arguments).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Runs `work` on a thread inside.
    ///
    /// # Panics
    /// If the namespace cannot be entered, or `work` panics.
    pub fn inside<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let file = File::open(format!("/run/netns/{}", self.name)).expect("a namespace");
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                // SAFETY: setns with an open descriptor has no further preconditions; it affects
                // only this thread, which ends with `work`.
                let entered = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(entered, 0, "{}", std::io::Error::last_os_error());
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Waits until `interface` has a carrier, or none, and returns the time that it took.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn until_carrier(&self, interface: &str, has: bool) -> Duration {
        let mut watch = self.inside(|| Watch::new(interface)).expect("a watch");
        let start = Instant::now();
        loop {
            watch.suspect();
            let presence = watch.look(None);
            if matches!(presence, Some(Presence::Present { is_running, .. }) if is_running == has) {
                return start.elapsed();
            }
            assert!(start.elapsed() < LIMIT, "{interface}: carrier: never {has}: {presence:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Command: `longhaul` with `arguments`, split at spaces, inside.
    pub fn longhaul(&self, runtime: &RuntimeDir, arguments: &str) -> Command {
        self.run(runtime, &longhaul(), arguments)
    }

    /// Command: `program`, another build of `longhaul`, with `arguments`, split at spaces, inside.
    fn run(&self, runtime: &RuntimeDir, program: &Path, arguments: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).args(arguments.split_whitespace());
        command.env("XDG_RUNTIME_DIR", runtime.path()).env_remove("LD_PRELOAD");
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A leftover is harmless.
        let _ = ip(&format!("netns del {}", self.name));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    let done = command.args(arguments.split_whitespace()).output();
    let done = done.map_err(|e| format!("ip (package iproute2): {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&done.stderr).trim()))
}

/// IPv4 address of the left host; its IPv6 address is fd99::1.
pub const LEFT: &str = "10.99.0.1";
/// IPv4 address of the right host.
pub const RIGHT: &str = "10.99.0.2";
/// IPv6 address of the right host.
pub const RIGHT_6: &str = "fd99::2";

/// Two hosts with a namespace between them for the boxes: `west` and `east` lead to the hosts, and
/// `w1`-`w2` and `e1`-`e2` are cables.
pub struct Network {
    /// The host at `west`.
    pub left: Namespace,
    /// The host at `east`.
    pub right: Namespace,
    /// Namespace of the boxes.
    pub middle: Namespace,
    /// Directory of the boxes' control sockets.
    pub runtime: RuntimeDir,
    _turn: Turn,
}

impl Network {
    /// Creates the network with interfaces of `mtu` bytes. `None`: namespaces cannot be created,
    /// and it was reported that `what` is skipped.
    pub fn new(what: &str, mtu: u32) -> Option<Self> {
        let turn = Turn::take();
        Self::build(mtu, turn).inspect_err(|reason| skip_loudly(what, reason)).ok()
    }

    fn build(mtu: u32, turn: Turn) -> Result<Self, String> {
        let (left, right) = (Namespace::new("left")?, Namespace::new("right")?);
        let middle = Namespace::new("middle")?;
        for (near, far) in [("west", "left"), ("east", "right"), ("w1", "w2"), ("e1", "e2")] {
            middle.ip(&format!("link add {near} mtu {mtu} type veth peer name {far} mtu {mtu}"))?;
        }
        for interface in ["west", "east", "w1", "w2", "e1", "e2"] {
            // A box's interface must send nothing itself.
            middle.ip(&format!("link set {interface} addrgenmode none up"))?;
        }
        for (host, name, v4, v6) in
            [(&left, "left", LEFT, "fd99::1"), (&right, "right", RIGHT, RIGHT_6)]
        {
            middle.ip(&format!("link set {name} netns {}", host.name))?;
            host.ip(&format!("link set {name} name eth0 up"))?;
            host.ip(&format!("address add {v4}/24 dev eth0"))?;
            host.ip(&format!("address add {v6}/64 dev eth0 nodad"))?;
        }
        Ok(Network { left, right, middle, runtime: RuntimeDir::new(), _turn: turn })
    }

    /// Starts a box and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub fn start(&self, arguments: &str) -> RunningBox {
        self.start_by(&longhaul(), arguments)
    }

    /// Like [`Network::start`], with another build of `longhaul`.
    ///
    /// # Panics
    /// Like [`Network::start`].
    pub fn start_by(&self, program: &Path, arguments: &str) -> RunningBox {
        let name = arguments.split_whitespace().skip_while(|word| *word != "--name").nth(1);
        let name = name.or(arguments.split_whitespace().next()).expect("a command").to_owned();
        let mut command = self.middle.run(&self.runtime, program, arguments);
        let mut program = Program::start(&mut command);
        let deadline = Instant::now() + LIMIT;
        while self.try_status(&name).is_none() {
            if !program.is_running() {
                panic!("{}", program.finish(LIMIT));
            }
            assert!(Instant::now() < deadline, "no status of {name}");
            thread::sleep(LOOK_AGAIN);
        }
        RunningBox { program, name }
    }

    /// Status of a box; `None` while it has none.
    ///
    /// # Panics
    /// If it is not JSON.
    pub fn try_status(&self, name: &str) -> Option<Value> {
        let mut command = self.runtime.longhaul(&format!("box status {name} --json"));
        let done = Program::start(&mut command).finish(LIMIT);
        let boxes = done.status.success().then(|| serde_json::from_str::<Value>(&done.stdout))?;
        Some(boxes.unwrap_or_else(|e| panic!("{e}: {done}"))[0].clone())
    }

    /// Whether an XDP program is attached to `interface`, in the boxes' namespace.
    ///
    /// # Panics
    /// If `ip` cannot be run.
    pub fn has_xdp_program(&self, interface: &str) -> bool {
        let show = || Command::new("ip").args(["link", "show", interface]).output();
        let shown = self.middle.inside(show).expect("ip");
        String::from_utf8_lossy(&shown.stdout).contains("xdp")
    }

    /// Status of a box. On a busy machine an answer may take longer than `longhaul box` waits.
    ///
    /// # Panics
    /// If it has none for long.
    pub fn status(&self, of: &RunningBox) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.try_status(&of.name) {
                return status;
            }
            assert!(Instant::now() < deadline, "{} has no status", of.name);
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until the status of `of` satisfies a condition.
    ///
    /// # Panics
    /// If it does not, with `what`.
    pub fn wait_for(&self, of: &RunningBox, what: &str, is_so: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let status = self.status(of);
            if is_so(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "{what} does not happen: {status:#}");
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Minimum of `count` UDP round trips of `len` bytes from left to `to`, on the right. Repeats
    /// what is not answered: fibres lose datagrams.
    ///
    /// # Panics
    /// If an answer is missing or differs.
    pub fn round_trip(&self, to: &str, len: usize, count: usize) -> Duration {
        let to: IpAddr = to.parse().expect("an address");
        let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let echo = self.right.inside(|| UdpSocket::bind(any)).expect("a socket");
        let port = echo.local_addr().expect("an address").port();
        let asker = self.left.inside(|| UdpSocket::bind(any)).expect("a socket");
        forbid_fragments(&asker, to.is_ipv6());
        asker.connect((to, port)).expect("connected");
        asker.set_read_timeout(Some(REPEAT_AFTER)).expect("a timeout");
        echo.set_read_timeout(Some(LOOK_AGAIN)).expect("a timeout");
        let (asks, is_over) = mpsc::channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut buffer = vec![0; 16 << 10];
                while is_over.try_recv() == Err(TryRecvError::Empty) {
                    if let Ok((len, from)) = echo.recv_from(&mut buffer) {
                        echo.send_to(&buffer[..len], from).expect("sent");
                    }
                }
            });
            // Dropped at the end, also if an assertion fails.
            let _asks = asks;
            (0..count).map(|number| ask(&asker, len, number)).min().expect("one at least")
        })
    }

    /// Sets interfaces down and up, one after another: those of both hosts, and that of `fibre` at
    /// its side a. Waits until the box notices each change, and checks that later frames arrive.
    ///
    /// # Panics
    /// If the box does not notice, or nothing arrives.
    pub fn pull_cables(&self, fibre: &RunningBox) {
        let is_up =
            |status: &Value, side: usize| status["pairs"][0]["ports"][side]["link_is_up"] == true;
        for (namespace, interface, side) in
            [(&self.left, "eth0", 0), (&self.right, "eth0", 1), (&self.middle, "west", 0)]
        {
            namespace.set(&format!("link set {interface} down"));
            self.wait_for(fibre, "down", |status| !is_up(status, side));
            namespace.set(&format!("link set {interface} up"));
            self.wait_for(fibre, "up", |status| is_up(status, side));
            self.round_trip(RIGHT, 64, 2);
        }
    }

    /// Makes hosts segment long UDP datagrams themselves, as on real cables: AF_XDP ports in
    /// generic mode cannot.
    ///
    /// # Panics
    /// If ethtool is missing.
    pub fn cut_datagrams_at_hosts(&self) {
        for host in [&self.left, &self.right] {
            let off = || {
                Command::new("ethtool").args(["-K", "eth0", "tx-udp-segmentation", "off"]).output()
            };
            let done = host
                .inside(off)
                .unwrap_or_else(|e| panic!("ethtool: {e}: apt-get install ethtool"));
            assert!(done.status.success(), "{done:?}");
        }
    }

    /// Sends `bytes` bytes by TCP from left to right and checks them there.
    ///
    /// # Panics
    /// If they do not all arrive unchanged.
    pub fn stream(&self, bytes: usize) {
        let listener = self.right.inside(|| TcpListener::bind((RIGHT, 0))).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut sender = self.left.inside(|| TcpStream::connect(address)).expect("a connection");
        let byte_at = |at: usize| (at ^ at >> 8 ^ at >> 16) as u8;
        thread::scope(|scope| {
            let taker = scope.spawn(move || {
                let (mut taker, _) = listener.accept().expect("a connection");
                taker.set_read_timeout(Some(LIMIT)).expect("a timeout");
                let mut buffer = vec![0; 1 << 20];
                let mut at = 0;
                loop {
                    let len = taker.read(&mut buffer).expect("a stream");
                    if len == 0 {
                        return at;
                    }
                    assert!(
                        buffer[..len].iter().zip(at..).all(|(b, at)| *b == byte_at(at)),
                        "after {at} bytes"
                    );
                    at += len;
                }
            });
            let data: Vec<u8> = (0..bytes).map(byte_at).collect();
            sender.write_all(&data).expect("written");
            drop(sender);
            assert_eq!(taker.join().expect("the taker"), bytes);
        });
    }
}

/// Sends datagram `number` of `len` bytes until its answer arrives, and returns the time since it
/// was first sent.
///
/// # Panics
/// If none does, or if it is the answer to no datagram so far.
fn ask(asker: &UdpSocket, len: usize, number: usize) -> Duration {
    let datagram = |number: usize| (0..len).map(move |at| (at * 7 + number) as u8);
    let sent: Vec<u8> = datagram(number).collect();
    let mut buffer = vec![0; 16 << 10];
    // From the first copy: a late answer to it may follow the second.
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        asker.send(&sent).expect("sent");
        while let Ok(came) = asker.recv(&mut buffer) {
            let came = &buffer[..came];
            if came == sent {
                return start.elapsed();
            }
            let is_earlier = (0..number).any(|number| datagram(number).eq(came.iter().copied()));
            assert!(is_earlier, "another datagram came back");
        }
    }
    panic!("no answer to a datagram of {len} bytes");
}

/// Makes the kernel refuse datagrams that exceed the MTU instead of fragmenting them.
fn forbid_fragments(socket: &UdpSocket, is_ipv6: bool) {
    let (level, option) = if is_ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
    };
    let value: libc::c_int = libc::IP_PMTUDISC_DO;
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the value is only read during the call.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// A running box.
pub struct RunningBox {
    /// Its process.
    pub program: Program,
    /// Its name for `longhaul box`.
    pub name: String,
}

impl RunningBox {
    /// Sends a signal to it.
    pub fn signal(&self, signal: libc::c_int) {
        // `ip netns exec` becomes the program.
        self.program.signal(signal);
    }

    /// PID of its carrier guard.
    ///
    /// # Panics
    /// If it has none.
    pub fn guard(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.program.id());
        let guard = std::fs::read_to_string(children).expect("a process");
        guard.trim().parse().expect("one child")
    }

    /// Ends it with SIGTERM.
    ///
    /// # Panics
    /// If it does not exit successfully.
    pub fn end(self) -> Finished {
        self.signal(libc::SIGTERM);
        self.program.succeed(LIMIT)
    }
}

/// `true` if the perftest server with this process id has its ports and is idle: by RDMA-CM it
/// listens on RoCEv2's, otherwise on a TCP port.
fn waits_for_clients(server: u32) -> bool {
    const ROCE: &str = ":12B7 ";
    const LISTENS: &str = " 00000000:0000 0A ";
    let used = || cpu_time(server).map(|time| time.own);
    let before = used();
    thread::sleep(Duration::from_millis(250));
    let sockets =
        |kind: &str| fs::read_to_string(format!("/proc/{server}/net/{kind}")).unwrap_or_default();
    let listens = sockets("udp").contains(ROCE)
        || sockets("tcp").contains(LISTENS)
        || sockets("tcp6").contains(":0000 0A ");
    listens && used() == before
}

impl Network {
    /// Starts a perftest program with `arguments`, split at spaces, between our RNICs: the client
    /// on the left, and the server on the right.
    ///
    /// # Panics
    /// If the server exits at once.
    pub fn begin(&self, arguments: &str) -> Transfer {
        self.begin_from(LEFT, arguments)
    }

    /// Like [`Network::begin`], from another IPv4 address of the left host.
    ///
    /// # Panics
    /// Like [`Network::begin`].
    pub fn begin_from(&self, client: &str, arguments: &str) -> Transfer {
        self.begin_between(client, RIGHT, arguments)
    }

    /// Like [`Network::begin`], between other IPv4 addresses of the two hosts.
    ///
    /// # Panics
    /// Like [`Network::begin`].
    pub fn begin_between(&self, client: &str, server: &str, arguments: &str) -> Transfer {
        self.begin_at(&self.left, [client, server], arguments)
    }

    /// Like [`Network::begin_between`], with the client at another host.
    ///
    /// # Panics
    /// Like [`Network::begin`].
    pub fn begin_at(
        &self,
        host: &Namespace,
        [client, server]: [&str; 2],
        arguments: &str,
    ) -> Transfer {
        let at = |host: &Namespace, ip: &str, peer: &str| {
            let program = format!("exec --udp={ip} -- {arguments} -d longhaul0 {peer}");
            Program::start(&mut host.longhaul(&self.runtime, &program))
        };
        let mut listening = at(&self.right, server, "");
        let deadline = Instant::now() + LIMIT;
        while !waits_for_clients(listening.id()) {
            let is_well = listening.is_running() && Instant::now() < deadline;
            assert!(is_well, "{}", listening.finish(LIMIT));
        }
        Transfer { client: at(host, client, server), server: listening }
    }

    /// Runs a perftest program like [`Network::begin`], and `meanwhile` at the same time.
    ///
    /// # Panics
    /// If either end fails.
    pub fn transfer(&self, arguments: &str, meanwhile: impl FnOnce()) {
        let Transfer { client, server } = self.begin(arguments);
        meanwhile();
        client.succeed(LIMIT);
        server.succeed(LIMIT);
    }
}

/// Both ends of a running program.
pub struct Transfer {
    /// The requester.
    pub client: Program,
    /// The responder.
    pub server: Program,
}
