//! Links of devices that belong to the box's process, as DPDK's do: the thread that has a pair's
//! ports tells the guard of them, and sets them for it.

use super::follow::Side;
use super::guard::{GuardedPair, Manner};
use super::{Order, send_at_once};
use longhaul_port::{LinkState, Port};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Time limit of a thread's answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What the thread is asked. It answers in order, and late if a driver is slow.
enum Ask {
    /// To bring all links up, and tell the guard of them from now on.
    Begin(UnixStream),
    /// To set the links of a side, or of both, and answer why some stay as they were.
    Set { of: Option<Side>, to: LinkState, answer: SyncSender<Vec<String>> },
}

/// The devices of a pair, for other threads than that which has them.
pub struct Devices {
    asks: Sender<Ask>,
    /// Whether a side has any.
    sides: [bool; 2],
}

/// The devices of a pair, for the thread that has them.
pub struct Attendant {
    pair: usize,
    asks: Receiver<Ask>,
    guard: Option<UnixStream>,
    devices: Vec<Device>,
}

/// A device among the ports of a pair.
struct Device {
    side: Side,
    /// Its number within its side.
    port: usize,
    setting: Setting,
    /// Its link as last told.
    told: Option<LinkState>,
}

/// Whether a device's link can be set.
enum Setting {
    Possible,
    /// It cannot, for a reason of which the guard has yet to be told.
    Refused(String),
    Impossible,
}

impl Device {
    /// Its place among all ports of the pair: the first side has one.
    fn place(&self) -> usize {
        self.side + self.port
    }

    /// Sets its link; returns why that stays as it was. Leaves one alone that cannot be set.
    fn set(&self, ports: &mut [impl Port], to: LinkState) -> Option<String> {
        match (&self.setting, ports.get_mut(self.place())) {
            (Setting::Possible, Some(port)) => Some(port.set_link(to).err()?.to_string()),
            _ => None,
        }
    }
}

/// The devices of pair number `pair`, if it has any.
pub fn devices(pair: usize, guarded: &GuardedPair) -> Option<(Devices, Attendant)> {
    let mut devices = Vec::new();
    for (side, ports) in guarded.sides.iter().enumerate() {
        for (port, guarded) in ports.iter().enumerate() {
            if guarded.as_ref().is_some_and(|of| matches!(of.manner, Manner::Device { .. })) {
                devices.push(Device { side, port, setting: Setting::Possible, told: None });
            }
        }
    }
    if devices.is_empty() {
        return None;
    }
    let (sender, asks) = channel();
    let sides = [0, 1].map(|side| devices.iter().any(|device| device.side == side));
    Some((Devices { asks: sender, sides }, Attendant { pair, asks, guard: None, devices }))
}

impl Devices {
    /// Has all links brought up, and the guard at the other end of `stream` told of them, and of
    /// devices that cannot be set. `wake` makes the thread attend.
    pub fn begin(&self, stream: UnixStream, wake: impl FnOnce()) {
        // A thread that has died ends the box.
        if self.asks.send(Ask::Begin(stream)).is_ok() {
            wake();
        }
    }

    /// Sets the links of one side, or of both, and returns why some stay as they were.
    pub fn set(&self, of: Option<Side>, to: LinkState, wake: impl FnOnce()) -> Vec<String> {
        if of.is_some_and(|side| self.sides.get(side) != Some(&true)) {
            return Vec::new();
        }
        let (answer, answered) = sync_channel(1);
        if self.asks.send(Ask::Set { of, to, answer }).is_ok() {
            wake();
        }
        let silent = |_| vec!["its thread does not answer; it follows when that does".to_string()];
        answered.recv_timeout(ANSWER_WITHIN).unwrap_or_else(silent)
    }
}

impl Attendant {
    /// Does what was asked, and tells the guard of what has changed. `ports`: the pair's.
    pub fn attend(&mut self, ports: &mut [impl Port]) {
        while let Ok(ask) = self.asks.try_recv() {
            match ask {
                Ask::Begin(stream) => {
                    self.guard = Some(stream);
                    for device in &mut self.devices {
                        if let Some(error) = device.set(ports, LinkState::Up) {
                            device.setting = Setting::Refused(error);
                        }
                    }
                }
                Ask::Set { of, to, answer } => {
                    let these = self.devices.iter();
                    let these = these.filter(|device| of.is_none_or(|side| side == device.side));
                    // Nobody may wait for it any more.
                    let _ = answer.send(these.filter_map(|device| device.set(ports, to)).collect());
                }
            }
        }
        let Some(guard) = &self.guard else { return };
        for device in &mut self.devices {
            let Some(port) = ports.get(device.place()) else { continue };
            let Device { side, port: number, .. } = *device;
            if let Setting::Refused(error) = &device.setting {
                let error = error.clone();
                let order = Order::Stays { pair: self.pair, side, port: number, error };
                if send_at_once(guard, &order).is_ok() {
                    device.setting = Setting::Impossible;
                }
            }
            let link = port.link_state();
            if device.told != Some(link) {
                let why_down = (link == LinkState::Down).then(|| why_down(port));
                let order = Order::Carrier { pair: self.pair, side, port: number, why_down };
                if send_at_once(guard, &order).is_ok() {
                    device.told = Some(link);
                }
            }
        }
    }
}

fn why_down(port: &impl Port) -> String {
    let name = port.capabilities().name;
    match port.last_disconnect() {
        Some(why) => format!("device {name}: {why}"),
        None => format!("device {name} has no carrier: is the other end connected and up?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::guard::GuardedPort;
    use longhaul_port::{NullPort, PortError, forward_port};
    use std::io::{BufRead, BufReader};
    use std::sync::mpsc::TryRecvError;
    use std::thread;

    /// A port whose link can be set, or cannot.
    struct WithLink {
        port: NullPort,
        link: LinkState,
        refuses: bool,
        /// The first time, it waits for the end of this.
        slow: Option<Receiver<()>>,
    }

    impl Port for WithLink {
        fn set_link(&mut self, to: LinkState) -> Result<(), PortError> {
            if let Some(slow) = self.slow.take() {
                let _ = slow.recv();
            }
            if self.refuses {
                let (port, reason) = ("test".to_string(), "it cannot".to_string());
                return Err(PortError::LinkStays { port, reason });
            }
            self.link = to;
            Ok(())
        }

        fn link_state(&self) -> LinkState {
            self.link
        }

        forward_port!(|self| self.port => receive, transmit_room, transmit, flush, arm, disarm);
        forward_port!(|self| self.port => descriptors, service, capabilities, counters);
    }

    fn port(refuses: bool) -> WithLink {
        let (port, link) = (NullPort::new("test", 64), LinkState::Down);
        WithLink { port, link, refuses, slow: None }
    }

    fn device() -> Option<GuardedPort> {
        let manner = Manner::Device { follows: true };
        Some(GuardedPort { name: "test".to_string(), manner })
    }

    fn next(told: &mut impl Iterator<Item = std::io::Result<String>>) -> Order {
        serde_json::from_str(&told.next().unwrap().unwrap()).unwrap()
    }

    const IS_DOWN: &str = "device test has no carrier: is the other end connected and up?";

    #[test]
    fn devices_are_set_and_told_of_by_the_thread_that_has_them() {
        let guarded = GuardedPair { sides: [vec![device()], vec![None, device()]], held: None };
        let (devices, mut attendant) = super::devices(7, &guarded).unwrap();
        let (ours, its) = UnixStream::pair().unwrap();
        let mut told = BufReader::new(its).lines();
        let (end, is_over) = channel::<()>();
        let carrier = |side, port, why_down: Option<&str>| {
            let why_down = why_down.map(str::to_string);
            Order::Carrier { pair: 7, side, port, why_down }
        };
        thread::scope(|scope| {
            // Dropped at the end, also if an assertion fails.
            let _end = end;
            scope.spawn(move || {
                let mut ports = [port(false), port(false), port(true)];
                while is_over.try_recv() == Err(TryRecvError::Empty) {
                    attendant.attend(&mut ports);
                    thread::yield_now();
                }
            });
            devices.begin(ours, || ());
            assert_eq!(next(&mut told), carrier(0, 0, None));
            let Order::Stays { pair: 7, side: 1, port: 1, error } = next(&mut told) else {
                panic!("a device that refuses")
            };
            assert!(error.ends_with("it cannot"), "{error}");
            assert_eq!(next(&mut told), carrier(1, 1, Some(IS_DOWN)));
            // It is left alone.
            assert!(devices.set(None, LinkState::Down, || ()).is_empty());
            assert_eq!(next(&mut told), carrier(0, 0, Some(IS_DOWN)));
            assert!(devices.set(Some(0), LinkState::Up, || ()).is_empty());
            assert_eq!(next(&mut told), carrier(0, 0, None));
        });
        let failed = devices.set(Some(0), LinkState::Up, || ());
        assert!(failed[0].starts_with("its thread does not answer"), "{failed:?}");
    }

    #[test]
    fn a_device_that_is_slow_follows_once_it_answers() {
        let guarded = GuardedPair { sides: [vec![device()], vec![None]], held: None };
        let (devices, mut attendant) = super::devices(0, &guarded).unwrap();
        let (ours, its) = UnixStream::pair().unwrap();
        let mut told = BufReader::new(its).lines();
        let (answer, slow) = channel::<()>();
        devices.begin(ours, || ());
        thread::scope(|scope| {
            scope.spawn(move || {
                attendant.attend(&mut [WithLink { slow: Some(slow), ..port(false) }]);
            });
            let silent = devices.set(Some(0), LinkState::Down, || ());
            assert!(silent[0].starts_with("its thread does not answer"), "{silent:?}");
            drop(answer);
            let why_down = Some(IS_DOWN.to_string());
            assert_eq!(next(&mut told), Order::Carrier { pair: 0, side: 0, port: 0, why_down });
        });
    }
}
