//! A guest, from its boot to its end.

use super::archive::Archive;
use super::control::{Control, Silence};
use super::kernel::{Kernel, NoKernel};
use super::programs;
use crate::{Finished, RuntimeDir};
use std::fs::{self, File};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A boot takes 4 to 10 s; other processes may use the cores too.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// Extra time for an answer from a slow machine.
const GRACE: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Prefix of the names of taps.
const TAP: &str = "lht";
const INIT: &str = include_str!("init.sh");
/// Modules of the control ports.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];
/// Kernel messages that a failure shows, in lines.
const MESSAGES_SHOWN: usize = 60;

/// Configuration of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    /// Name for messages.
    pub name: String,
    /// Memory in MiB, including the initramfs.
    pub memory_mib: u32,
    /// Number of processors. With one, programs that poll starve the kernel's network.
    pub processors: u32,
    /// QEMU's processor model.
    pub cpu: String,
    /// eth0 and up, in this order, unconfigured.
    pub netdevs: Vec<Netdev>,
    /// Modules loaded at boot, in this order, each after its dependencies.
    pub modules: Vec<String>,
    /// Programs and libraries of this machine, at the same paths in the guest, with the libraries
    /// that they need.
    pub programs: Vec<PathBuf>,
    /// Programs and libraries at other paths in the guest: (path in the guest, path here).
    pub moved: Vec<(String, PathBuf)>,
    /// Other files: (path in the guest, content).
    pub files: Vec<(String, Vec<u8>)>,
    /// Files, directories and symbolic links of this machine, at the same paths, with the libraries
    /// that programs among them need.
    pub installed: Vec<PathBuf>,
    /// Symbolic links: (path in the guest, target).
    pub links: Vec<(String, String)>,
    /// Program that becomes the first process once the guest takes commands.
    pub first: Option<PathBuf>,
    /// Additional words of the kernel's command line.
    pub kernel_arguments: Vec<String>,
}

/// A network device of a guest.
#[derive(Clone, Debug)]
pub struct Netdev {
    /// QEMU's network backend.
    pub backend: String,
    /// MAC address, in the usual text form.
    pub mac: String,
    /// MTU in bytes; RoCE with a path MTU of 4096 needs 4192.
    pub mtu: u16,
}

impl Netdev {
    /// A device attached to a [`Tap`] of this machine.
    pub fn tap(tap: &Tap, mac: &str, mtu: u16) -> Self {
        let backend = format!("tap,ifname={},script=no,downscript=no", tap.name);
        Netdev { backend, mac: mac.to_owned(), mtu }
    }

    /// A device connected to another guest by a pair of socket paths, this guest's and the other's;
    /// each datagram is a frame.
    pub fn datagrams(own: &Path, other: &Path, mac: &str, mtu: u16) -> Self {
        let (own, other) = (own.display(), other.display());
        let backend =
            format!("dgram,local.type=unix,local.path={own},remote.type=unix,remote.path={other}");
        Netdev { backend, mac: mac.to_owned(), mtu }
    }
}

impl GuestConfig {
    /// Two processors, 768 MiB, and the programs of every guest: busybox under /bin, dash as its
    /// shell.
    pub fn new(name: &str) -> Self {
        GuestConfig {
            name: name.to_owned(),
            memory_mib: 768,
            processors: 2,
            cpu: "max".to_owned(),
            netdevs: Vec::new(),
            modules: Vec::new(),
            programs: Vec::new(),
            moved: Vec::new(),
            files: Vec::new(),
            installed: Vec::new(),
            links: Vec::new(),
            first: None,
            kernel_arguments: Vec::new(),
        }
    }

    /// Adds modules by name.
    #[must_use]
    pub fn modules(mut self, names: &[&str]) -> Self {
        self.modules.extend(names.iter().map(|&name| name.to_owned()));
        self
    }

    /// Adds programs from this machine's search path: (program, Debian's package).
    ///
    /// # Panics
    /// If one is not installed.
    #[must_use]
    pub fn programs(mut self, programs: &[(&str, &str)]) -> Self {
        self.programs
            .extend(programs.iter().map(|(program, package)| programs::find(program, package)));
        self
    }

    /// Adds the kernel's RDMA with rxe, libibverbs' driver for it, and iproute2 to configure it.
    ///
    /// # Panics
    /// If the driver or iproute2 is not installed.
    #[must_use]
    pub fn rxe(mut self) -> Self {
        // rxe requests a CRC by name and does not load its module.
        self = self.modules(&[
            "crc32_generic",
            "udp_tunnel",
            "ip6_udp_tunnel",
            "ib_core",
            "ib_uverbs",
            "rdma_rxe",
        ]);
        self = self.modules(&["ib_cm", "iw_cm", "rdma_cm", "rdma_ucm"]);
        self = self.programs(&[("ip", "iproute2"), ("rdma", "iproute2"), ("tc", "iproute2")]);
        self.programs.push(rxe_driver());
        // glibc loads this library when the first thread exits.
        self.programs.push(PathBuf::from("/lib/x86_64-linux-gnu/libgcc_s.so.1"));
        self.files.push(("/etc/libibverbs.d/rxe.driver".to_owned(), b"driver rxe\n".to_vec()));
        self
    }

    fn initramfs(&self, kernel: &Kernel) -> Vec<u8> {
        let mut archive = Archive::default();
        archive.object("/bin/busybox", &programs::find("busybox", "busybox-static"));
        archive.object("/bin/dash", &programs::find("dash", "dash"));
        // The kernel calls it by this path.
        archive.link("/sbin/modprobe", "/bin/busybox");
        for directory in ["proc", "sys", "dev", "etc", "var"] {
            archive.directory(directory);
        }
        archive.file("/init", INIT);
        let mut modules: Vec<String> = MODULES.map(str::to_owned).into();
        if !self.netdevs.is_empty() {
            modules.push("virtio_net".to_owned());
        }
        modules.extend(self.modules.iter().cloned());
        archive
            .file("/modules", modules.iter().map(|name| format!("{name}\n")).collect::<String>());
        for (path, content) in kernel.with_dependencies(&modules) {
            archive.file(&path, content);
        }
        for path in &self.installed {
            archive.installed(path);
        }
        for program in &self.programs {
            archive.object(&program.to_string_lossy(), program);
        }
        for (path, from) in &self.moved {
            archive.object(path, from);
        }
        for (path, content) in &self.files {
            archive.file(path, content.clone());
        }
        for (path, target) in &self.links {
            archive.link(path, target);
        }
        if let Some(first) = &self.first {
            archive.file("/first", first.to_string_lossy().into_owned());
        }
        archive.to_bytes()
    }

    fn qemu(&self, kernel: &Kernel, files: &Files) -> Command {
        let mut command = Command::new(programs::find("qemu-system-x86_64", "qemu-system-x86"));
        // Emulated processors share one counter, which the kernel distrusts: reading any other
        // clock of this machine stops all of them. The timer looks broken to a kernel that is
        // descheduled while it tests it. A panic ends QEMU.
        let arguments =
            ["quiet", "loglevel=4", "console=ttyS0", "panic=-1", "tsc=reliable", "no_timer_check"];
        let arguments =
            arguments.into_iter().chain(self.kernel_arguments.iter().map(String::as_str));
        command
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
                "-machine",
                "q35",
            ])
            .args(["-accel", "tcg,thread=multi", "-cpu", &self.cpu])
            .args(["-m", &self.memory_mib.to_string(), "-smp", &self.processors.to_string()])
            .arg("-kernel")
            .arg(kernel.image())
            .arg("-initrd")
            .arg(&files.initramfs)
            .args(["-append", &arguments.collect::<Vec<_>>().join(" ")])
            .args(["-serial", &format!("file:{}", files.console.display())])
            .args(["-device", "virtio-serial-pci"]);
        for (number, socket) in files.ports.iter().enumerate() {
            let number = number + 1;
            command
                .args(["-chardev", &format!("socket,id=port{number},path={}", socket.display())])
                .args(["-device", &format!("virtserialport,chardev=port{number},nr={number}")]);
        }
        for (number, Netdev { backend, mac, mtu }) in self.netdevs.iter().enumerate() {
            command.args(["-netdev", &format!("{backend},id=net{number}")]).args([
                "-device",
                &format!("virtio-net-pci,netdev=net{number},mac={mac},host_mtu={mtu},romfile="),
            ]);
        }
        command
    }
}

/// Files of a running guest.
struct Files {
    initramfs: PathBuf,
    /// Output of its first serial port: the kernel's warnings.
    console: PathBuf,
    qemu_messages: PathBuf,
    ports: [PathBuf; 2],
}

/// A running guest; killed when dropped.
pub struct Guest {
    name: String,
    control: Control,
    next_job: AtomicU32,
    qemu: Child,
    files: Files,
    /// Removed last.
    _directory: RuntimeDir,
}

impl Guest {
    /// Boots a guest with Debian's newest kernel.
    ///
    /// # Errors
    /// If no kernel is available; the check is then skipped, loudly.
    ///
    /// # Panics
    /// If it does not boot, with its output, or a program is missing, with its package's name.
    pub fn boot(config: &GuestConfig) -> Result<Self, NoKernel> {
        Ok(Self::boot_kernel(&Kernel::newest()?, config))
    }

    /// Boots a guest with this kernel.
    ///
    /// # Panics
    /// Like [`Guest::boot`].
    pub fn boot_kernel(kernel: &Kernel, config: &GuestConfig) -> Self {
        let directory = RuntimeDir::new();
        let place = |name: &str| directory.path().join(name);
        let files = Files {
            initramfs: place("initramfs"),
            console: place("console"),
            qemu_messages: place("qemu"),
            ports: [place("port1"), place("port2")],
        };
        must(&files.initramfs, fs::write(&files.initramfs, config.initramfs(kernel)));
        // Bound before QEMU starts, because QEMU connects to them.
        let listeners = files.ports.each_ref().map(|path| must(path, UnixListener::bind(path)));
        let messages = must(&files.qemu_messages, File::create(&files.qemu_messages));
        let mut command = config.qemu(kernel, &files);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages)
            .env_remove("LD_PRELOAD");
        let mut qemu = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let [commands, results] = listeners.map(|listener| accept(&listener, &mut qemu, &files));
        let control = Control::new(commands, results, GRACE);
        let (name, next_job) = (config.name.clone(), AtomicU32::new(0));
        let guest = Guest { name, control, next_job, qemu, files, _directory: directory };
        if let Err(silence) = guest.control.wait_ready(BOOT_LIMIT) {
            panic!("guest {} does not boot: {silence}\n{}", guest.name, guest.files.said());
        }
        guest
    }

    /// Starts `command`, a script for dash. It and all its children are killed after `limit`
    /// (rounded up to seconds), with exit code 137.
    ///
    /// # Panics
    /// If the guest has exited.
    pub fn spawn(&self, command: &str, limit: Duration) -> Job<'_> {
        let number = self.next_job.fetch_add(1, Ordering::Relaxed);
        let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
        self.answered(self.control.start(number, seconds, command));
        Job {
            guest: self,
            number,
            command: command.to_owned(),
            limit,
            started: Instant::now(),
            running: true,
        }
    }

    /// Runs `command`, a script for dash, until it exits, with any status; see [`Guest::spawn`] for
    /// `limit`.
    ///
    /// # Panics
    /// If the guest has exited or does not answer.
    pub fn run(&self, command: &str, limit: Duration) -> Finished {
        self.spawn(command, limit).finish()
    }

    /// Runs `command`, which must succeed.
    ///
    /// # Panics
    /// If it fails, with the kernel's messages.
    pub fn succeed(&self, command: &str, limit: Duration) -> Finished {
        self.spawn(command, limit).succeed()
    }

    /// Runs `server` in the background, and `client` once a process listens on TCP `port`; both
    /// must succeed.
    ///
    /// # Panics
    /// If one fails, with the output of both and the kernel's messages.
    pub fn pair(
        &self,
        server: &str,
        client: &str,
        port: u16,
        limit: Duration,
    ) -> (Finished, Finished) {
        let server = self.spawn(server, limit);
        // State 0A: listening.
        let listens = format!("grep -qh ':{port:04X} [0-9A-F:]* 0A' /proc/net/tcp /proc/net/tcp6");
        let wait = format!("until {listens}; do sleep 0.05; done");
        if !self.run(&wait, GRACE).status.success() {
            self.fail(&format!("nobody listens on TCP port {port}:\n{}", server.finish_now()));
        }
        let client = self.run(client, limit);
        if !client.status.success() {
            self.fail(&format!(
                "=== the client\n{client}\n=== the server\n{}",
                server.finish_now()
            ));
        }
        (server.succeed(), client)
    }

    /// Ends the guest as a power cut would; later calls panic.
    pub fn kill(&self) {
        let number = self.qemu.id();
        crate::kill(number, libc::SIGKILL);
        // The guest's taps are free once QEMU has ended; `drop` reaps it.
        // SAFETY: all-zero is a valid siginfo_t, which the call fills in; the child was not waited
        // for.
        unsafe {
            let mut how: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, number, &raw mut how, libc::WEXITED | libc::WNOWAIT);
        }
    }

    /// The kernel's messages so far.
    ///
    /// # Panics
    /// If the guest has exited or does not answer.
    pub fn dmesg(&self) -> String {
        self.run("dmesg", GRACE).stdout
    }

    /// Fails the test with `why` and the kernel's latest messages.
    fn fail(&self, why: &str) -> ! {
        let messages = self.dmesg();
        let lines: Vec<&str> = messages.lines().collect();
        let last = lines[lines.len().saturating_sub(MESSAGES_SHOWN)..].join("\n");
        panic!("{why}\n=== the kernel of guest {}\n{last}", self.name);
    }

    fn answered<T>(&self, answer: Result<T, Silence>) -> T {
        answer.unwrap_or_else(|silence| panic!("{}: {silence}\n{}", self.name, self.files.said()))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It has no disk to corrupt, and may have exited.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Files {
    /// Output available when the guest does not answer.
    fn said(&self) -> String {
        let text = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        format!("=== QEMU\n{}\n=== its console\n{}", text(&self.qemu_messages), text(&self.console))
    }
}

/// A command that was started in a guest; killed when dropped.
pub struct Job<'a> {
    guest: &'a Guest,
    number: u32,
    command: String,
    limit: Duration,
    started: Instant,
    /// Its exit was not waited for.
    running: bool,
}

impl Job<'_> {
    /// `true` while it runs.
    pub fn is_running(&self) -> bool {
        !self.guest.control.has_ended(self.number)
    }

    /// Sends `signal`, named without SIG, to it and its children.
    ///
    /// # Panics
    /// If the guest has exited.
    pub fn signal(&self, signal: &str) {
        self.guest.answered(self.guest.control.signal(self.number, signal));
    }

    /// Standard output and standard error so far.
    ///
    /// # Panics
    /// If the guest has exited or does not answer.
    pub fn output(&self) -> (String, String) {
        self.guest.answered(self.guest.control.fetch(self.number))
    }

    /// Waits until it exits, with any status.
    ///
    /// # Panics
    /// If the guest has exited or does not answer.
    pub fn finish(mut self) -> Finished {
        let limit = (self.started + self.limit + GRACE).saturating_duration_since(Instant::now());
        let code = self.guest.answered(self.guest.control.wait_end(self.number, limit));
        let (stdout, stderr) = self.output();
        self.running = false;
        self.guest.answered(self.guest.control.forget(self.number));
        // The low byte of a wait status is the signal, which the guest's shell has encoded in the
        // exit code.
        let status = ExitStatus::from_raw(code << 8);
        Finished { name: format!("{}: {}", self.guest.name, self.command), status, stdout, stderr }
    }

    /// Kills it and returns its output.
    ///
    /// # Panics
    /// Like [`Job::finish`].
    pub fn finish_now(self) -> Finished {
        self.signal("KILL");
        self.finish()
    }

    /// Waits until it exits, which must be a success.
    ///
    /// # Panics
    /// If it fails, with the kernel's messages.
    pub fn succeed(self) -> Finished {
        let guest = self.guest;
        let finished = self.finish();
        if !finished.status.success() {
            guest.fail(&finished.to_string());
        }
        finished
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        if self.running {
            // The guest may have exited.
            let _ = self.guest.control.signal(self.number, "KILL");
        }
    }
}

/// A tap device of this machine; removed when dropped. Needs root.
pub struct Tap {
    name: String,
}

impl Tap {
    /// Creates a tap with `mtu` and an address of this machine, such as `192.168.77.1/24`; `tag` is
    /// as in [`Tap::without_address`].
    ///
    /// # Errors
    /// If this user lacks the privileges, or the kernel has no tap devices.
    ///
    /// # Panics
    /// If iproute2 is missing.
    pub fn new(tag: &str, address: &str, mtu: u16) -> Result<Self, String> {
        let tap = Self::without_address(tag, mtu)?;
        let name = tap.name();
        // As on any interface in use, for IPv6.
        ip(&format!("link set {name} addrgenmode eui64"))?;
        ip(&format!("address add {address} dev {name}"))?;
        Ok(tap)
    }

    /// Creates a tap with `mtu` that is only a cable, without an address of this machine. `tag`, of
    /// at most 4 letters, distinguishes it within this process. Taps of killed processes are
    /// removed.
    ///
    /// # Errors
    /// If this user lacks the privileges, or the kernel has no tap devices.
    ///
    /// # Panics
    /// If iproute2 is missing.
    pub fn without_address(tag: &str, mtu: u16) -> Result<Self, String> {
        remove_abandoned_taps();
        let name = format!("{TAP}{tag}{}", std::process::id());
        let tap = Tap { name: name.clone() };
        ip(&format!("tuntap add dev {name} mode tap"))?;
        ip(&format!("link set {name} mtu {mtu} txqueuelen 20000 addrgenmode none up"))?;
        Ok(tap)
    }

    /// Adds another address of this machine, such as `fd77::1/64`.
    ///
    /// # Errors
    /// If this user lacks the privileges.
    pub fn add_address(&self, address: &str) -> Result<(), String> {
        // Without duplicate address detection an IPv6 address can be used at once.
        let at_once = if address.contains(':') { "nodad" } else { "" };
        ip(&format!("address add {address} dev {} {at_once}", self.name))
    }

    /// Name on this machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Unplugs the cable, or plugs it in.
    ///
    /// # Panics
    /// If the tap is gone.
    pub fn plug(&self, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        ip(&format!("link set {} {state}", self.name)).unwrap_or_else(|e| panic!("{e}"));
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        // It may never have come up.
        let _ = ip(&format!("tuntap del dev {} mode tap", self.name));
    }
}

/// Removes the taps of killed processes, whose addresses would interfere.
fn remove_abandoned_taps() {
    for entry in fs::read_dir("/sys/class/net").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(TAP) else { continue };
        let maker = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        if maker.parse::<u32>().is_ok() && !Path::new("/proc").join(maker).exists() {
            // Another process may have removed it.
            let _ = ip(&format!("tuntap del dev {name} mode tap"));
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    let done =
        Command::new(programs::find("ip", "iproute2")).args(line.split_whitespace()).output();
    let done = done.map_err(|e| format!("ip {line}: {e}"))?;
    let reason = String::from_utf8_lossy(&done.stderr);
    if done.status.success() { Ok(()) } else { Err(format!("ip {line}: {}", reason.trim())) }
}

/// Accepts the connection that QEMU makes at its start.
fn accept(listener: &UnixListener, qemu: &mut Child, files: &Files) -> UnixStream {
    listener.set_nonblocking(true).expect("a socket that does not block");
    let deadline = Instant::now() + GRACE;
    loop {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).expect("a socket that blocks");
            return stream;
        }
        let gone = !matches!(qemu.try_wait(), Ok(None));
        if gone || Instant::now() > deadline {
            // It may have exited by itself.
            let _ = qemu.kill();
            panic!("QEMU does not start\n{}", files.said());
        }
        sleep(LOOK_AGAIN);
    }
}

/// libibverbs' driver for rxe; its name contains the version of their interface.
fn rxe_driver() -> PathBuf {
    let drivers =
        fs::read_dir("/usr/lib/x86_64-linux-gnu/libibverbs").into_iter().flatten().flatten();
    let driver = drivers
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("/librxe-rdmav"));
    driver.unwrap_or_else(|| {
        panic!("libibverbs has no driver for rxe: apt-get install ibverbs-providers")
    })
}

fn must<T>(path: &Path, outcome: std::io::Result<T>) -> T {
    outcome.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
