//! Rosella's shock: the servers' speeds are shuffled during the run. Some policies learn the new speeds. The
//! figure shows the mean response time of each stretch (equal part) of the run.

use std::fmt::Write as _;

use super::{Output, arguments, command, command_of_figure, draw};
use crate::sim::plan;
use crate::sim::stats::Observer;
use crate::sim::stats::STRETCHES;

/// Name of the figure and of its files.
const NAME: &str = "rosella-shock";
/// Policies and their labels in the figure.
const POLICIES: [(&str, &str); 7] = [
    ("ppot", "ppot, rates from before the shock"),
    ("ppot-learned", "ppot-learned, c1 = 1"),
    ("ppot-learned(c1=0.1)", "ppot-learned, c1 = 0.1"),
    ("ppot-ewma", "ppot-ewma"),
    ("ppot-ll-ewma", "ppot-ll-ewma"),
    ("jsq(2)", "jsq(2), without rates"),
    ("lsq-update(.2)", "lsq-update(.2), without rates"),
];
/// Mean service times in which 1000 tasks arrive: 100 servers at load 0.8 receive 80 tasks per mean service
/// time, because the model scales their speeds to a mean of 1.
const TIMES_PER_1000: f64 = 12.5;

/// Makes the figure. A mean service time is 100 us, so a run lasts 1 s, or 10 s if `full`. The shuffle comes
/// after a fifth of that.
pub(super) fn make(out: &Output, full: bool) -> Result<(), String> {
    let (tasks, at) = if full { ("8000000", "2s shuffle") } else { ("800000", "200ms shuffle") };
    let mut table = "series,time,mean\n".to_owned();
    let (mut commands, mut lines) = (command_of_figure(NAME, full), Vec::new());
    for (policy, label) in POLICIES {
        let keys = [
            ("model", "ct"),
            ("speeds", "50x1,50x10"),
            ("dispatchers", "1"),
            ("load", "0.8"),
            ("warmup", "0"),
            ("tasks", tasks),
            ("at", at),
            ("policy", policy),
        ];
        let cell = plan::cells(&arguments(&keys)?)?.pop().ok_or("no cell")?;
        let outcome = cell.model.run(1, &Observer::hidden())?;
        // Length of a stretch of the timeline, in mean service times.
        let stretch = outcome.tasks as f64 / 1000.0 * TIMES_PER_1000 / STRETCHES as f64;
        let mut points = Vec::new();
        // A stretch's point is in its middle.
        for (index, ticks) in outcome.timeline.means().enumerate() {
            let (time, mean) = ((index as f64 + 0.5) * stretch, ticks / outcome.ticks_per_unit);
            let _ = writeln!(table, "\"{label}\",{time},{mean:.5}");
            points.push((time, mean));
        }
        lines.push((label.to_owned(), points));
        let _ = writeln!(commands, "{}", command(&keys));
    }
    let title = "Speeds 1:10 are swapped after a fifth of the time, load 0.8";
    let axes = ("time, mean service times", "mean response by arrival time, mean service times");
    out.write(NAME, "svg", &draw(title, axes, &lines)?)?;
    out.write(NAME, "csv", &table)?;
    out.write(NAME, "txt", &commands)
}
