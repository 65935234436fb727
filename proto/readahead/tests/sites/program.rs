//! The hosts' programs: commands in the form of NVMe-oF, whose data the target READs, WRITEs or
//! ignores.
//!
//! Each command's data is unique, and the initiator overwrites it as soon as the command is
//! answered.

use super::{BASE, INITIATOR, Setup, Sites, TARGET};
use longhaul_rnic::{Completion, CompletionOp, RecvWr, SendOp, SendWr, Sge, Status};
use longhaul_units::{Duration, Instant, Rng, SplitMix64};
use std::collections::BTreeMap;

/// Places in a host's memory, from its start.
const SLOT: usize = 64 << 10;
const CONSTANT: usize = 8 << 20;
const CONSTANT_LEN: usize = 1 << 20;
const SCRATCH: usize = 10 << 20;
const CAPSULES: usize = 12 << 20;
const RECEIVES: usize = 13 << 20;
const RECEIVE: usize = 256;
const RECEIVES_POSTED: u64 = 256;

/// Amount and kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub commands: u64,
    /// Commands in flight, at most 64.
    pub depth: usize,
    /// Longest data, at most 64 KiB; the shortest is a quarter of it.
    pub len: usize,
    /// This command names memory with an invalid key; its target ignores it.
    pub bad_key_in: Option<u64>,
    /// Targets do anything that they may; otherwise they READ at once and answer.
    pub is_wild: bool,
}

/// The target's reaction to a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    /// READs the data, in this many pieces.
    Read(usize),
    /// Answers without a READ.
    Leave,
    /// WRITEs to the initiator: a reading command.
    Write,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    slot: usize,
    len: usize,
    plan: Plan,
    issued_at: Instant,
    /// Incomplete work requests of the target.
    left: usize,
    is_answered: bool,
}

/// The programs, with their hosts.
pub struct Programs {
    pub sites: Sites,
    work: Work,
    rng: SplitMix64,
    commands: BTreeMap<u64, Command>,
    free: Vec<usize>,
    issued: u64,
    /// Future actions of the target.
    later: BTreeMap<(Instant, u64), ()>,
    pub latencies: Vec<Duration>,
}

fn pattern(command: u64, len: usize) -> Vec<u8> {
    let mut noise = SplitMix64::new(command ^ 0x5eed_5eed);
    let words = (0..len.div_ceil(8)).flat_map(|_| noise.next_u64().to_ne_bytes());
    words.take(len).collect()
}

const KINDS: u64 = 4;
const CAPSULE: u64 = 0;
const DATA: u64 = 1;
const ANSWER: u64 = 2;
const EXTRA: u64 = 3;

impl Programs {
    pub fn new(setup: &Setup, work: Work) -> Programs {
        let mut programs = Programs {
            sites: Sites::new(setup),
            work,
            rng: SplitMix64::new(setup.seed ^ 0xca11),
            commands: BTreeMap::new(),
            free: (0..work.depth).collect(),
            issued: 0,
            later: BTreeMap::new(),
            latencies: Vec::new(),
        };
        programs.write(INITIATOR, CONSTANT, &pattern(u64::MAX, CONSTANT_LEN));
        for host in [INITIATOR, TARGET] {
            (0..RECEIVES_POSTED).for_each(|place| programs.post_receive(host, place));
        }
        programs
    }

    /// Runs until every command is answered.
    pub fn run(&mut self) {
        let outcome = self.run_to(self.work.commands);
        assert_eq!(outcome, Ok(()), "{} of {} are done", self.latencies.len(), self.work.commands);
    }

    /// Runs until `commands` commands are answered, or a work request fails on a host.
    pub fn run_to(&mut self, commands: u64) -> Result<(), (usize, Status)> {
        let end = self.sites.now + Duration::from_ms(120_000);
        while (self.latencies.len() as u64) < commands {
            self.issue();
            for host in [INITIATOR, TARGET] {
                for completion in self.completions(host) {
                    if completion.status != Status::Success {
                        return Err((host, completion.status));
                    }
                    self.take(host, &completion);
                }
            }
            while let Some((&(at, number), ())) = self.later.first_key_value()
                && at <= self.sites.now
            {
                self.later.pop_first();
                self.act(number);
            }
            let until = self.later.first_key_value().map_or(end, |(&(at, _), ())| at.min(end));
            let goes_on = self.sites.step(until) || until < end;
            assert!(
                goes_on,
                "{} of {} are done, and nothing happens",
                self.latencies.len(),
                commands
            );
        }
        Ok(())
    }

    /// Lets time pass.
    pub fn rest(&mut self, duration: Duration) {
        let end = self.sites.now + duration;
        while self.sites.step(end) {}
    }

    pub fn completions(&mut self, host: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        let Sites { hosts, .. } = &self.sites;
        let cq = hosts[host].cq;
        hosts[host].rnic.borrow_mut().poll_cq(cq, usize::MAX, |completion| all.push(completion));
        all
    }

    fn write(&mut self, host: usize, at: usize, bytes: &[u8]) {
        let rnic = &mut *self.sites.hosts[host].rnic.borrow_mut();
        rnic.memory_mut().0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, host: usize, at: usize, len: usize) -> Vec<u8> {
        self.sites.hosts[host].rnic.borrow().memory().0[at..at + len].to_vec()
    }

    fn segment(&self, host: usize, at: usize, len: usize) -> Sge {
        Sge { address: BASE + at as u64, len: len as u32, lkey: self.sites.hosts[host].keys.lkey }
    }

    fn post(&mut self, host: usize, wr_id: u64, op: SendOp, at: usize, len: usize) {
        let segments = [self.segment(host, at, len)];
        let wr = SendWr {
            wr_id,
            op,
            segments: &segments,
            inline: false,
            signaled: true,
            solicited: false,
            fence: false,
        };
        let (now, qpn) = (self.sites.now, self.sites.hosts[host].qpn);
        self.sites.hosts[host].rnic.borrow_mut().post_send(now, qpn, &wr).unwrap();
    }

    fn post_receive(&mut self, host: usize, place: u64) {
        let segments = [self.segment(host, RECEIVES + place as usize * RECEIVE, RECEIVE)];
        let qpn = self.sites.hosts[host].qpn;
        let wr = RecvWr { wr_id: place, segments: &segments };
        self.sites.hosts[host].rnic.borrow_mut().post_recv(qpn, &wr).unwrap();
    }

    /// Sends commands while there is room for their data.
    fn issue(&mut self) {
        while self.issued < self.work.commands {
            let Some(slot) = self.free.pop() else { return };
            let number = self.issued;
            self.issued += 1;
            let wild = self.work.is_wild;
            let len = if wild {
                self.work.len / 4 + self.rng.below(self.work.len as u64 * 3 / 4) as usize
            } else {
                self.work.len
            };
            let is_bad = self.work.bad_key_in == Some(number);
            let plan = match self.rng.below(10) {
                _ if is_bad => Plan::Leave,
                _ if !wild => Plan::Read(1),
                0 | 1 => Plan::Leave,
                2 | 3 => Plan::Write,
                4 | 5 => Plan::Read(1 + self.rng.below(4) as usize),
                _ => Plan::Read(1),
            };
            self.write(INITIATOR, slot * SLOT, &pattern(number, len));
            let mut capsule = [0; 64];
            capsule[0] = if plan == Plan::Write { 2 } else { 1 };
            capsule[1] = 0x40;
            capsule[2..4].copy_from_slice(&(number as u16).to_le_bytes());
            capsule[24..32].copy_from_slice(&(BASE + (slot * SLOT) as u64).to_le_bytes());
            capsule[32..35].copy_from_slice(&(len as u32).to_le_bytes()[..3]);
            capsule[35..39]
                .copy_from_slice(&(self.sites.rkey(INITIATOR).0 ^ u32::from(is_bad)).to_le_bytes());
            capsule[39] = 0x40;
            capsule[40..48].copy_from_slice(&number.to_le_bytes());
            let at = CAPSULES + slot * 64;
            self.write(INITIATOR, at, &capsule);
            let issued_at = self.sites.now;
            let command = Command { slot, len, plan, issued_at, left: 0, is_answered: false };
            self.commands.insert(number, command);
            let op = SendOp::Send { immediate: None, invalidate: None };
            self.post(INITIATOR, number * KINDS + CAPSULE, op, at, 64);
        }
    }

    fn take(&mut self, host: usize, completion: &Completion) {
        match (host, completion.op) {
            (TARGET, CompletionOp::Recv) => self.take_command(completion),
            (INITIATOR, CompletionOp::Recv) => self.take_answer(completion),
            (TARGET, _) => self.take_data(completion),
            _ => {}
        }
    }

    fn take_command(&mut self, completion: &Completion) {
        let capsule = self.read(TARGET, RECEIVES + completion.wr_id as usize * RECEIVE, 64);
        self.post_receive(TARGET, completion.wr_id);
        let number = u64::from_le_bytes(capsule[40..48].try_into().unwrap());
        let wait =
            if self.work.is_wild && self.rng.below(4) == 0 { self.rng.below(120_000) } else { 3 };
        self.later.insert((self.sites.now + Duration::from_us(wait), number), ());
    }

    /// Performs the target's action on a command.
    fn act(&mut self, number: u64) {
        let command = self.commands[&number];
        let (remote, rkey) = (BASE + (command.slot * SLOT) as u64, self.sites.rkey(INITIATOR));
        if self.work.is_wild {
            self.do_something_else();
        }
        let local = command.slot * SLOT;
        match command.plan {
            Plan::Leave => self.answer(number),
            Plan::Write => {
                self.write(TARGET, local, &pattern(!number, command.len));
                let op = SendOp::Write { remote_address: remote, rkey, immediate: None };
                self.post(TARGET, number * KINDS + EXTRA, op, local, command.len);
                self.answer(number);
            }
            Plan::Read(pieces) => {
                self.write(TARGET, local, &vec![0xdd; command.len]);
                let piece = command.len.div_ceil(pieces);
                for at in (0..command.len).step_by(piece) {
                    let op = SendOp::Read { remote_address: remote + at as u64, rkey };
                    self.commands.get_mut(&number).unwrap().left += 1;
                    self.post(
                        TARGET,
                        number * KINDS + DATA,
                        op,
                        local + at,
                        piece.min(command.len - at),
                    );
                }
            }
        }
    }

    /// READs memory that no command announced, or WRITEs.
    fn do_something_else(&mut self) {
        let rkey = self.sites.rkey(INITIATOR);
        let len = 1 + self.rng.below(5000) as usize;
        match self.rng.below(3) {
            0 => {
                let at = CONSTANT + self.rng.below(CONSTANT_LEN as u64 - 5000) as usize;
                let op = SendOp::Read { remote_address: BASE + at as u64, rkey };
                self.post(TARGET, EXTRA, op, at, len);
            }
            1 => {
                let op =
                    SendOp::Write { remote_address: BASE + SCRATCH as u64, rkey, immediate: None };
                self.post(TARGET, EXTRA, op, SCRATCH, len);
            }
            _ => {}
        }
    }

    fn take_data(&mut self, completion: &Completion) {
        if completion.wr_id % KINDS != DATA {
            return;
        }
        let number = completion.wr_id / KINDS;
        let command = self.commands.get_mut(&number).unwrap();
        command.left -= 1;
        let command = *command;
        if command.left == 0 {
            let data = self.read(TARGET, command.slot * SLOT, command.len);
            assert!(data == pattern(number, command.len), "the data of command {number}");
            self.answer(number);
        }
    }

    fn answer(&mut self, number: u64) {
        let command = self.commands.get_mut(&number).unwrap();
        assert!(!std::mem::replace(&mut command.is_answered, true));
        let at = CAPSULES + command.slot * 64;
        let mut answer = [0; 16];
        answer[..8].copy_from_slice(&number.to_le_bytes());
        answer[12..14].copy_from_slice(&(number as u16).to_le_bytes());
        self.write(TARGET, at, &answer);
        let op = SendOp::Send { immediate: None, invalidate: None };
        self.post(TARGET, number * KINDS + ANSWER, op, at, 16);
    }

    fn take_answer(&mut self, completion: &Completion) {
        let answer = self.read(INITIATOR, RECEIVES + completion.wr_id as usize * RECEIVE, 16);
        self.post_receive(INITIATOR, completion.wr_id);
        let number = u64::from_le_bytes(answer[..8].try_into().unwrap());
        let command = self.commands.remove(&number).expect("answered once");
        if command.plan == Plan::Write {
            let data = self.read(INITIATOR, command.slot * SLOT, command.len);
            assert!(data == pattern(!number, command.len), "what command {number} reads");
        }
        self.write(INITIATOR, command.slot * SLOT, &vec![0xee; command.len]);
        self.free.push(command.slot);
        self.latencies.push(self.sites.now.since(command.issued_at));
    }

    /// Checks the data that the target READ from constant memory.
    pub fn check_constant(&self) {
        let there = self.read(INITIATOR, CONSTANT, CONSTANT_LEN);
        let here = self.read(TARGET, CONSTANT, CONSTANT_LEN);
        assert!(
            here.iter().zip(&there).all(|(here, there)| *here == 0 || here == there),
            "a READ that passed"
        );
    }
}
