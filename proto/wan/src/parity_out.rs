//! Sending half of parity, for one path: decides how much parity to send, and when.

use crate::Parity;
use crate::flight::Flight;
use crate::format::HEADER_LEN;
use crate::rtt::copies_for;
use longhaul_cc::wire_bytes;
use longhaul_fec::{
    Adaptation, Body, Encoder, Layout, PathLoss, ROWS_MAX, Report, STRIDE_MAX, SYMBOLS_MAX,
    residual_loss,
};
use longhaul_units::{BitRate, Duration, Instant};

/// Minimum interval between two looks at the path's loss.
const REPORT_MIN: Duration = Duration::from_ms(1);
/// Numbers that suffice for a look, and the round trips after which fewer do.
const NUMBERS_MIN: u64 = 256;
const RTTS_MAX: u64 = 16;
/// Share of parity, in bytes per byte of DATA, that is always allowed; below this loss, no more is
/// useful.
const SHARE_LEAST: f64 = 0.05;
const LOSS_OF_LEAST: f64 = 1.5e-3;
/// Share of the path's rate that parity may take if that is more: the datagrams that protect
/// acknowledgements are longer than they.
const RATE_SHARE: f64 = 1e-3;
/// Factor by which a layout's bytes may exceed its share in datagrams: parities are as long as
/// their longest member.
const SHARE_SLACK: f64 = 2.0;
/// Parities for which credit may accumulate while idle, in addition to two blocks': blocks that end
/// early need more than their share.
const CREDIT_PARITIES: usize = 64;
/// The path has room for parity if DATA leave this multiple of the parity's share unused.
const ROOM_FACTOR: f64 = 2.0;
/// Ratio of loss, or of burst length, at which the thriftiest layout is computed again.
const BAND: f64 = 1.25;

/// Maximum bytes by which a PARITY exceeds the longest datagram of its group.
const PARITY_MORE: u64 = 48;
/// Headers of a PARITY before its head block, for untagged IPv4.
const HEADERS: usize = 42 + HEADER_LEN;

/// Counts of a path's numbers at one time.
#[derive(Clone, Copy)]
struct Seen {
    at: Instant,
    /// Numbers up to the largest that arrived.
    numbers: u64,
    /// Those that did not arrive themselves. Too high for a while: it includes late numbers, and
    /// those whose acknowledgement was lost.
    missing: i64,
    bursts: u64,
    sent: u64,
}

/// Use of a path since the last look.
#[derive(Clone, Copy, Default)]
struct Usage {
    /// Time without waiting DATA.
    idle: Duration,
    /// Start of the current idle time.
    idle_from: Option<Instant>,
    data_bytes: f64,
    parity_bytes: f64,
}

impl Usage {
    #[inline]
    fn note_data(&mut self, now: Instant, bytes: u64) {
        self.data_bytes += bytes as f64;
        if let Some(from) = self.idle_from.take() {
            self.idle = self.idle + now.since(from);
        }
    }

    /// Share of a period that DATA leave to parity, on a path of this rate.
    fn room(self, now: Instant, period: Duration, rate: Option<BitRate>) -> f64 {
        let idle = self.idle + self.idle_from.map_or(Duration::ZERO, |from| now.since(from));
        let idle = (idle.as_secs_f64() / period.as_secs_f64()).min(1.0);
        let parity = self.parity_bytes / (self.parity_bytes + self.data_bytes).max(1.0);
        let unused =
            rate.map_or(1.0, |rate| 1.0 - self.data_bytes / rate.bytes_in(period).max(1) as f64);
        (idle + (1.0 - idle) * parity).min(unused)
    }
}

/// The layout with the least total of retransmissions and parity on a full path.
#[derive(Clone, Copy)]
struct Thrifty {
    path: PathLoss,
    layout: Option<Layout>,
}

impl Thrifty {
    /// For a path that sends `in_flight` numbers in a round trip. Only the longest groups are
    /// considered: where parity pays, they pay most.
    fn of(path: PathLoss, in_flight: u64, copies_max: u8) -> Self {
        let repetition = |loss: f64| loss * f64::from(copies_for(loss, in_flight, copies_max));
        let mut best = (repetition(path.loss), None);
        let strides = (0..).map(|shift| 1 << shift).take_while(|&stride| stride <= STRIDE_MAX);
        let fits = |stride: &usize| (stride * SYMBOLS_MAX) as u64 <= in_flight / 2;
        for stride in strides.filter(fits) {
            for layout in
                (1..=ROWS_MAX).filter_map(|rows| Layout::new(SYMBOLS_MAX, rows, stride).ok())
            {
                // Parity covers retransmissions as well. A stride costs memory, and time to repair.
                let weight = 1.0 + 0.01 * f64::from(stride.trailing_zeros());
                let cost = weight * layout.overhead() + repetition(residual_loss(layout, path));
                if cost < best.0 {
                    best = (cost, Some(layout));
                }
            }
        }
        Thrifty { path, layout: best.1 }
    }

    fn is_for(&self, path: PathLoss) -> bool {
        let is_near =
            |a: f64, b: f64| (a.max(b) <= f64::MIN_POSITIVE) || a.max(b) / a.min(b) < BAND;
        is_near(self.path.loss, path.loss) && is_near(self.path.burst, path.burst)
    }
}

pub(crate) struct ParityOut {
    policy: Parity,
    encoder: Encoder,
    adaptation: Adaptation,
    /// Bytes of parity that may be sent.
    credit: f64,
    /// Credit per byte of DATA.
    share: f64,
    /// Length of the longest DATA, in bytes.
    longest: u64,
    /// The layout for a path on which DATA leave no room.
    thrifty: Option<Thrifty>,
    usage: Usage,
    /// Rate of the path, if known.
    rate: Option<BitRate>,
    last_data_at: Instant,
    /// Time at which the current block began.
    begun_at: Instant,
    /// Counts at the last look that sufficed.
    seen: Option<Seen>,
    /// Counts since the last look: `at`, `numbers` and `sent` of the first report, and the minima
    /// of the others.
    floor: Option<Seen>,
    /// Counts of the far box, unwrapped.
    repaired: i64,
    bursts: u64,
    heard: Option<(u32, u16)>,
    /// Earlier numbers were lost with the path and do not count.
    from: u64,
    pub(crate) sent: u64,
}

impl ParityOut {
    pub(crate) fn new(policy: Parity) -> Self {
        ParityOut {
            policy,
            encoder: Encoder::new(None),
            adaptation: Adaptation::new(),
            credit: 0.0,
            share: SHARE_LEAST,
            longest: 0,
            thrifty: None,
            usage: Usage::default(),
            rate: None,
            last_data_at: Instant::ZERO,
            begun_at: Instant::ZERO,
            seen: None,
            floor: None,
            repaired: 0,
            bursts: 0,
            heard: None,
            from: 0,
            sent: 0,
        }
    }

    /// The layout in force.
    pub(crate) fn layout(&self) -> Option<Layout> {
        self.encoder.next_layout()
    }

    /// Share of transmissions that the path loses, before repair.
    pub(crate) fn loss(&self) -> f64 {
        self.adaptation.path().loss
    }

    /// Numbers that the far box repaired and that never arrived.
    pub(crate) fn repaired(&self) -> u64 {
        self.repaired.max(0) as u64
    }

    /// `true` if numbered datagrams must be passed to it.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.encoder.next_layout().is_some() || self.encoder.unprotected() > 0
    }

    /// `true` if parity waits to be sent.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.encoder.due() > 0
    }

    /// Notes that nothing but parity waits, on a path of this rate.
    #[inline]
    pub(crate) fn note_room(&mut self, now: Instant, rate: Option<BitRate>) {
        self.usage.idle_from.get_or_insert(now);
        self.rate = rate;
    }

    /// Notes that a numbered datagram is sent.
    #[inline]
    pub(crate) fn note_data(&mut self, now: Instant, bytes: u64) {
        self.usage.note_data(now, bytes);
        self.longest = self.longest.max(bytes);
    }

    /// Adds a datagram that was sent under `number`. Returns the first number that no closed block
    /// covers.
    #[inline]
    pub(crate) fn add(
        &mut self,
        now: Instant,
        number: u64,
        head: &[u8],
        body: &Body<'_>,
        bytes: u64,
    ) -> u64 {
        if self.encoder.unprotected() == 0 {
            self.begun_at = now;
        }
        // A datagram that cannot be coded is sent unprotected; the block ends before it.
        let _ = self.encoder.add(number, head, body);
        let of_rate = self.rate.map_or(0, |rate| rate.bytes_in(now.since(self.last_data_at)));
        self.last_data_at = now;
        let parities =
            self.layout().map_or(0, |layout| 2 * layout.rows() * layout.stride()) + CREDIT_PARITIES;
        let most = (parities as u64 * self.longest) as f64;
        let earned = (self.share * bytes as f64).max(RATE_SHARE * of_rate as f64);
        self.credit = (self.credit + earned).min(most);
        number + 1 - self.encoder.unprotected() as u64
    }

    /// Returns the next parity for which there is credit.
    pub(crate) fn next(&mut self) -> Option<longhaul_fec::Parity<'_>> {
        let cost = loop {
            let cost = wire_bytes(HEADERS + self.encoder.next_len()?) as f64;
            if cost <= self.credit {
                break cost;
            }
            self.encoder.next_parity();
        };
        self.credit -= cost;
        self.usage.parity_bytes += cost;
        self.sent += 1;
        self.encoder.next_parity()
    }

    /// Time at which the current block ends although it is not full, after a pause or at age `age`,
    /// so that its last datagrams are protected.
    pub(crate) fn flush_at(&self, pause: Duration, age: Duration) -> Option<Instant> {
        let at = || (self.last_data_at + pause).min(self.begun_at + age.max(pause));
        (self.encoder.unprotected() > 0).then(at)
    }

    /// Ends the current block.
    pub(crate) fn flush(&mut self) {
        self.encoder.flush();
    }

    /// Starts again after the path was down: pending parity is useless, and the losses do not
    /// predict later ones. `next` is the next number.
    pub(crate) fn reset(&mut self, next: u64) {
        self.from = next;
        self.encoder.flush();
        while self.encoder.next_parity().is_some() {}
        self.encoder.set_layout(None);
        (self.seen, self.floor) = (None, None);
    }

    /// Takes the far box's counts (low parts) from an acknowledgement that has been applied.
    pub(crate) fn hear(&mut self, at: Instant, flight: &Flight, repaired: u32, bursts: u16) {
        let (repaired_before, bursts_before) =
            self.heard.replace((repaired, bursts)).unwrap_or_default();
        self.repaired += i64::from(repaired.wrapping_sub(repaired_before) as i32);
        self.bursts =
            self.bursts.saturating_add_signed(i64::from(bursts.wrapping_sub(bursts_before) as i16));
        let Some(largest) = flight.largest_arrived().filter(|&largest| largest >= self.from) else {
            return;
        };
        let numbers = largest + 1;
        let missing = numbers as i64 - flight.arrived as i64 + self.repaired;
        let (bursts, sent) = (self.bursts, flight.sent);
        let floor = self.floor.get_or_insert(Seen { at, numbers, missing, bursts, sent });
        floor.missing = floor.missing.min(missing);
        floor.bursts = floor.bursts.min(bursts);
    }

    /// Evaluates the path's loss, about once per round trip, and chooses a layout.
    pub(crate) fn look(&mut self, now: Instant, flight: &Flight, copies_max: u8) {
        let rtt = flight.rtt.smoothed();
        let is_over = |floor: &mut Seen| now.since(floor.at) >= rtt.max(REPORT_MIN);
        let Some(floor) = self.floor.take_if(is_over).filter(|_| self.policy != Parity::Off) else {
            return;
        };
        let Some(before) = self.seen else {
            self.seen = Some(floor);
            return;
        };
        let (period, packets) =
            (floor.at.since(before.at), floor.numbers.saturating_sub(before.numbers));
        if packets == 0 || packets < NUMBERS_MIN && period < rtt.times(RTTS_MAX) {
            return;
        }
        let missing = floor.missing.max(before.missing);
        let bursts = floor.bursts.max(before.bursts);
        self.seen = Some(Seen { missing, bursts, ..floor });
        let lost = ((missing - before.missing) as u64).min(packets);
        let bursts = (bursts - before.bursts).clamp(lost.min(1), lost);
        let packets_per_s = (floor.sent - before.sent) as f64 / period.as_secs_f64();
        let free_bytes_per_s =
            self.rate.map_or(0.0, |rate| RATE_SHARE * rate.as_bps() as f64 / 8.0);
        let free_per_s = free_bytes_per_s / (self.longest + PARITY_MORE).max(1) as f64;
        let per_s = [packets_per_s, free_per_s];
        let choice = self.adaptation.report(&Report { packets, lost, bursts }, rtt, per_s, None);
        let room = std::mem::take(&mut self.usage).room(now, period, self.rate);
        let has_room = choice.layout.is_some_and(|layout| room > ROOM_FACTOR * layout.overhead());
        let layout = match self.policy {
            Parity::Adaptive if !has_room => self.thriftiest(flight.in_flight(), copies_max),
            _ => choice.layout,
        };
        let overhead = layout.map_or(0.0, Layout::overhead);
        let is_low = self.loss() < LOSS_OF_LEAST;
        self.share = if is_low { SHARE_LEAST } else { SHARE_LEAST.max(overhead * SHARE_SLACK) };
        self.encoder.set_layout(layout);
    }

    fn thriftiest(&mut self, in_flight: u64, copies_max: u8) -> Option<Layout> {
        let path = self.adaptation.path();
        let known = self.thrifty.filter(|known| known.is_for(path));
        let thrifty = known.unwrap_or_else(|| Thrifty::of(path, in_flight, copies_max));
        self.thrifty = Some(thrifty);
        thrifty.layout
    }
}
