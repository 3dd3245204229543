"""Why a hit is as long as it is: explanations of the reference beside brute force."""
