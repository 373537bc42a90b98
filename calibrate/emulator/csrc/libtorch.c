/* The one function of PyTorch that is replaced: "is a Python dispatch mode on?"
 * Operators that ask it avoid in-place updates under a mode, which would change
 * the memory that is being measured. The integer tracker is such a mode and
 * lets every operator run as it is, so the true answer here is no. */

/* c10::impl::dispatch_mode_enabled() */
int _ZN3c104impl21dispatch_mode_enabledEv(void);
int _ZN3c104impl21dispatch_mode_enabledEv(void) { return 0; }
