//! A guest with rxe, and our device, on one segment.

use super::segment::{Fibre, Port, Segment, address};
use super::{End, Exchange, Family, LIMIT, MTU, PROGRAMS, SOMEBODY_LISTENS};
use crate::guest::{Guest, GuestConfig, Netdev, Tap};
use crate::pair::{both, wait_until_asleep};
use crate::perftest::complaint;
use crate::{Finished, Program, RuntimeDir, longhaul};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Path in the guest of the program called `{probe}` in exchanges.
const PROBE: &str = "/opt/verbs_probe";

/// A guest with rxe on its eth0, and this machine on the same segment.
pub struct RxePeer {
    guest: Guest,
    segment: Segment,
    /// Indices of rxe's addresses.
    gids: BTreeMap<Ipv6Addr, usize>,
    probe: Option<PathBuf>,
    /// Directory for files that `longhaul` writes.
    runtime: RuntimeDir,
}

impl RxePeer {
    /// Boots the guest. `name`, of at most 3 letters, distinguishes its devices; `probe` is a
    /// program of this machine that exchanges may use.
    ///
    /// # Errors
    /// If this machine has no TAP devices or bridges, or no kernel image is available; skip loudly
    /// then.
    ///
    /// # Panics
    /// If a program is missing or the guest does not boot.
    pub fn boot(name: &str, probe: Option<&Path>) -> Result<Self, String> {
        Self::boot_extended(name, probe, |config| config.programs(&PROGRAMS))
    }

    /// As [`RxePeer::boot`], without programs for exchanges, but with what `extend` adds.
    ///
    /// # Errors
    /// As [`RxePeer::boot`].
    ///
    /// # Panics
    /// As [`RxePeer::boot`].
    pub fn boot_extended(
        name: &str,
        probe: Option<&Path>,
        extend: impl FnOnce(GuestConfig) -> GuestConfig,
    ) -> Result<Self, String> {
        let segment = Segment::new(name)?;
        let mut config = extend(GuestConfig::new("rxe").rxe().modules(&["sch_netem", "8021q"]));
        config.moved.extend(probe.map(|path| (PROBE.to_owned(), path.to_owned())));
        config.netdevs.push(Netdev::tap(segment.cable(), "52:54:00:00:00:02", MTU));
        let guest = Guest::boot(&config).map_err(|reason| reason.to_string())?;
        let addresses = segment.guest_setup();
        guest.succeed(
            &format!("set -e\n{addresses}\nrdma link add rxe0 type rxe netdev eth0"),
            LIMIT,
        );
        let list = "cat $(ls -v /sys/class/infiniband/rxe0/ports/1/gids/*)";
        let gids = guest.succeed(list, LIMIT).stdout;
        let gids =
            gids.lines().enumerate().filter_map(|(index, gid)| Some((gid.parse().ok()?, index)));
        let (gids, probe) = (gids.collect(), probe.map(Path::to_owned));
        Ok(RxePeer { guest, segment, gids, probe, runtime: RuntimeDir::new() })
    }

    /// The guest that rxe runs in.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The guest's cable to the segment.
    pub fn cable(&self) -> &Tap {
        self.segment.cable()
    }

    /// Starts a program of this machine on our device at `port`; its line as in an [`Exchange`].
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(&self, line: &str, port: Port, family: Family) -> Program {
        Program::start(&mut self.our_command(line, port, family))
    }

    /// Runs `longhaul emulate` with `options` between the two while the result exists.
    ///
    /// # Panics
    /// If it does not start, or the two cannot reach each other.
    pub fn fibre(&self, options: &str) -> Fibre<'_> {
        let fibre = self.segment.fibre(options, &self.runtime);
        let ours = address(End::Ours, Port::Udp, Family::V4);
        self.guest.succeed(&format!("until ping -c 1 -W 5 {ours} >/dev/null; do :; done"), LIMIT);
        fibre
    }

    /// Runs the server of `exchange` at `server` and its client at the other end; our device uses
    /// `port`.
    ///
    /// # Errors
    /// The output of both, if one fails or hangs.
    ///
    /// # Panics
    /// If the guest has exited.
    pub fn run(
        &self,
        exchange: &Exchange,
        port: Port,
        server: End,
        family: Family,
        limit: Duration,
    ) -> Result<(Finished, Finished), String> {
        match server {
            End::Ours => {
                let begins = self.guest_line(&exchange.client, port, family);
                let server = Program::start(&mut self.our_command(&exchange.server, port, family));
                wait_until_asleep(server.id());
                let client = self.guest.run(&begins, limit);
                let patience = if client.status.success() { LIMIT } else { Duration::ZERO };
                both(server.end_within(patience), Ok(client))
            }
            End::Rxe => {
                let job = self.guest.spawn(&self.guest_line(&exchange.server, port, family), limit);
                if !self.guest.run(SOMEBODY_LISTENS, LIMIT).status.success() {
                    return Err(format!("nobody listens\n{}", job.finish_now()));
                }
                let mut command = self.our_command(&exchange.client, port, family);
                if exchange.connects_twice {
                    // Gives an emulated server time to listen again.
                    command.env("LD_PRELOAD", self.slow_names());
                }
                let client = Program::start(&mut command).end_within(limit);
                let is_done = matches!(&client, Ok(client) if client.status.success());
                let server = if is_done { job.finish() } else { job.finish_now() };
                both(Ok(server), client)
            }
        }
    }

    /// Runs each exchange in both directions and with both families. Returns the failures.
    ///
    /// # Panics
    /// If the guest has exited.
    pub fn failures(
        &self,
        exchanges: impl IntoIterator<Item = Exchange>,
        port: Port,
        families: &[Family],
        limit: Duration,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        for exchange in exchanges {
            for (&family, server) in
                families.iter().flat_map(|family| [(family, End::Ours), (family, End::Rxe)])
            {
                let what = format!("{} ({port:?}, {family:?}, server {server:?})", exchange.client);
                let start = Instant::now();
                let outcome = self.run(&exchange, port, server, family, limit);
                println!(
                    "{what}: {} in {:.1?}",
                    if outcome.is_ok() { "ok" } else { "failed" },
                    start.elapsed()
                );
                match outcome {
                    Err(text) => wrong.push(format!("{what}\n{text}")),
                    Ok((server, client)) => {
                        let said = [&server.stdout, &client.stdout].map(|text| complaint(text));
                        let said = said.into_iter().flatten().next();
                        wrong.extend(said.map(|said| format!("{what}: {said}")));
                    }
                }
            }
        }
        wrong
    }

    /// A library that delays name lookups.
    fn slow_names(&self) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/interop/slow_names.c");
        let library = self.runtime.path().join("slow_names.so");
        if !library.exists() {
            let options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"];
            let compiled = Command::new("cc").args(options).args([&library, &source]).output();
            let compiled = compiled.expect("cc is missing: apt-get install gcc");
            assert!(compiled.status.success(), "cc: {}", String::from_utf8_lossy(&compiled.stderr));
        }
        library
    }

    /// Applies netem to the frames that the guest sends, until the result is dropped.
    ///
    /// # Panics
    /// If netem rejects it.
    pub fn netem(&self, what: &str) -> Netem<'_> {
        self.guest
            .succeed(&format!("tc qdisc replace dev eth0 root netem limit 10000 {what}"), LIMIT);
        Netem { guest: &self.guest }
    }

    /// Expands `word` of a command line for `end`.
    fn word(&self, word: &str, end: End, port: Port, family: Family) -> String {
        let own = address(end, port, family);
        let (device, gid) = match end {
            End::Ours => ("longhaul0", 0),
            End::Rxe => ("rxe0", self.gid(&own)),
        };
        word.replace("{device}", device)
            .replace("{gid}", &gid.to_string())
            .replace("{port}", &(20_000 + std::process::id() % 10_000).to_string())
            .replace("{own}", &own)
            .replace("{peer}", &address(end.other(), port, family))
            .replace("{host}", &address(end.other(), Port::Udp, Family::V4))
    }

    /// Index of rxe's `address`.
    fn gid(&self, address: &str) -> usize {
        let ip: std::net::IpAddr = address.parse().expect("an address");
        let gid = match ip {
            std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            std::net::IpAddr::V6(ip) => ip,
        };
        *self
            .gids
            .get(&gid)
            .unwrap_or_else(|| panic!("rxe has no address {gid} among {:?}", self.gids))
    }

    fn guest_line(&self, template: &str, port: Port, family: Family) -> String {
        self.word(template, End::Rxe, port, family).replace("{probe}", PROBE)
    }

    /// Expands `template` for our device.
    fn our_command(&self, template: &str, port: Port, family: Family) -> Command {
        let mut command = Command::new(longhaul());
        command.arg("exec").args(self.segment.place(port, family)).arg("--");
        for word in template.split_whitespace() {
            match (word, &self.probe) {
                // Its path may contain spaces.
                ("{probe}", Some(path)) => command.arg(path),
                _ => command.arg(self.word(word, End::Ours, port, family)),
            };
        }
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    /// Address of our device as a UDP socket, for display.
    pub fn own_address(&self, family: Family) -> String {
        address(End::Ours, Port::Udp, family)
    }

    /// rxe's address and its index, for display.
    pub fn rxe_address(&self, family: Family) -> (String, usize) {
        let address = address(End::Rxe, Port::Udp, family);
        let gid = self.gid(&address);
        (address, gid)
    }
}

/// netem on the frames that a guest sends; removed when dropped.
pub struct Netem<'a> {
    guest: &'a Guest,
}

impl Drop for Netem<'_> {
    fn drop(&mut self) {
        // If this fails, the test has failed already.
        self.guest.run("tc qdisc del dev eth0 root", LIMIT);
    }
}
